//! Counters.

/// What a [`BlockEncoder`](super::BlockEncoder) has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncoderStats {
    /// Data packets taken.
    pub data: u64,
    /// Their bytes, without headers.
    pub data_bytes: u64,
    /// Repair packets given.
    pub repairs: u64,
    /// Their bytes, without headers.
    pub repair_bytes: u64,
    /// Repair packets that were due and not asked for before their block gave way to a new one.
    pub repairs_dropped: u64,
    /// Repair packets beyond the overcode, granted by [`more`](super::BlockEncoder::more).
    pub repairs_more: u64,
    /// Blocks closed because they were full.
    pub closed_full: u64,
    /// Blocks closed because their time was over.
    pub closed_time: u64,
    /// Blocks closed because nothing more was waiting to be sent.
    pub closed_drained: u64,
    /// Packets refused because they were too long.
    pub too_long: u64,
}

/// What a [`BlockDecoder`](super::BlockDecoder) has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecoderStats {
    /// New data packets received, those too late to be of use for decoding included.
    pub data: u64,
    /// Data packets recovered.
    pub recovered: u64,
    /// Recovered packets that were not fetched before the next packet was handled.
    pub recovered_dropped: u64,
    /// Repair packets received, except refused ones.
    pub repairs: u64,
    /// Of these the ones that were of no use: their block was complete or had given way, they
    /// were duplicates, or their number was far off.
    pub repairs_spare: u64,
    /// Of these the ones whose block's number was far off.
    pub repairs_far: u64,
    /// Duplicates of data packets that had been received or recovered before.
    pub duplicates: u64,
    /// Data packets whose block's number was so far off that it could not be known whether they
    /// had been passed on before.
    pub late: u64,
    /// Times that so many packets in a row were far off that everything was forgotten and their
    /// block taken for the newest.
    pub resyncs: u64,
    /// Times that a block and those behind it were begun anew because a data packet had other
    /// content than before.
    pub restarted: u64,
    /// Blocks that gave way to others before all their data was known to be there.
    pub evicted: u64,
    /// Of these the ones of which data was known to be missing.
    pub lost_blocks: u64,
    /// Data packets known to be missing when their block gave way. They may yet come late.
    pub lost: u64,
    /// Blocks whose packets gave no sensible data: some were not of one encoder.
    pub corrupt_blocks: u64,
    /// Packets refused because they were of another scheme.
    pub refused_scheme: u64,
    /// Packets refused because they were too long or too short.
    pub refused_length: u64,
    /// Packets refused because they contradicted what was known of their block.
    pub refused_contradiction: u64,
    /// Packets refused because a number in the header was out of range.
    pub refused_too_many: u64,
}

impl DecoderStats {
    /// Packets refused, for whatever reason.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused_scheme
            + self.refused_length
            + self.refused_contradiction
            + self.refused_too_many
    }
}
