//! Counters.

/// Counters of a [`BlockEncoder`](super::BlockEncoder) since its construction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncoderStats {
    /// Data packets taken.
    pub data: u64,
    /// Bytes of data packets, without headers.
    pub data_bytes: u64,
    /// Repair packets given.
    pub repairs: u64,
    /// Bytes of repair packets, without headers.
    pub repair_bytes: u64,
    /// Repair packets that were due and not fetched before a new block replaced theirs.
    pub repairs_dropped: u64,
    /// Repair packets beyond the overhead, granted by [`more`](super::BlockEncoder::more).
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

/// Counters of a [`BlockDecoder`](super::BlockDecoder) since its construction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecoderStats {
    /// New data packets received, including those too late for decoding.
    pub data: u64,
    /// Data packets recovered.
    pub recovered: u64,
    /// Recovered packets that were not fetched before the next packet was handled.
    pub recovered_dropped: u64,
    /// Repair packets received, except refused ones.
    pub repairs: u64,
    /// Useless ones of these: their block was complete or dropped, they were duplicates, or their
    /// number was far off.
    pub repairs_spare: u64,
    /// Ones of these whose block number was far off.
    pub repairs_far: u64,
    /// Duplicates of data packets that had been received or recovered before.
    pub duplicates: u64,
    /// Data packets with a block number so far off that duplicates could not be detected.
    pub late: u64,
    /// Times that enough consecutive packets were far off, so that everything was dropped and their
    /// block became the newest.
    pub resyncs: u64,
    /// Times that a block and those after it were restarted because a data packet had other content
    /// than before.
    pub restarted: u64,
    /// Blocks dropped for others before all their data was known to be present.
    pub evicted: u64,
    /// Ones of these with data known to be missing.
    pub lost_blocks: u64,
    /// Data packets known to be missing when their block was dropped. They may still come late.
    pub lost: u64,
    /// Blocks whose packets gave invalid data: some were not of one encoder.
    pub corrupt_blocks: u64,
    /// Packets refused because they were of another scheme.
    pub refused_scheme: u64,
    /// Packets refused because they were too long or too short.
    pub refused_length: u64,
    /// Packets refused because they contradicted their block.
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
