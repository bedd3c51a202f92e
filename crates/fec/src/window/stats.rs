//! Counters.

/// What a [`WindowEncoder`](super::WindowEncoder) has done since it was made.
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
    /// Repair packets made out of turn because no more data came for a while.
    pub repairs_tail: u64,
    /// Repair packets that were sent before their delay was over, because too many waited.
    pub repairs_early: u64,
    /// Repair packets that were never made, as nobody fetched those before them.
    pub repairs_dropped: u64,
    /// Packets refused because they were too long.
    pub too_long: u64,
}

/// What a [`WindowDecoder`](super::WindowDecoder) has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecoderStats {
    /// New data packets received within the span.
    pub data: u64,
    /// Data packets recovered.
    pub recovered: u64,
    /// Recovered packets that left the span before they were fetched.
    pub recovered_dropped: u64,
    /// Repair packets received, except refused ones.
    pub repairs: u64,
    /// Of these the ones that said nothing new: nothing of their window was missing, or they
    /// followed from others.
    pub repairs_spare: u64,
    /// Of these the ones whose window was not, or not wholly, within the span.
    pub repairs_far: u64,
    /// Of these the ones forgotten when their windows left the span.
    pub repairs_expired: u64,
    /// Of these the ones that gave way to others because there were too many.
    pub repairs_evicted: u64,
    /// Duplicates of data packets that had been received or recovered before.
    pub duplicates: u64,
    /// Data packets behind the span or too far ahead of it, so that it could not be known whether
    /// they had been passed on before; and those with the number of another, but other content.
    pub late: u64,
    /// Times that so many packets in a row were far off that everything was forgotten and the span
    /// put where they were.
    pub resyncs: u64,
    /// Data packets that left the span neither received nor recovered.
    pub lost: u64,
    /// Times that the repair packets at hand gave no sensible data and were forgotten: some were
    /// not of one encoder.
    pub corrupt: u64,
    /// Packets refused because they were of another scheme.
    pub refused_scheme: u64,
    /// Packets refused because they were too long or too short.
    pub refused_length: u64,
    /// Packets refused because their window was too long.
    pub refused_too_many: u64,
}

impl DecoderStats {
    /// Packets refused, for whatever reason.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused_scheme + self.refused_length + self.refused_too_many
    }

    pub(super) fn count(&mut self, refused: crate::scheme::Refused) {
        use crate::scheme::Refused;
        match refused {
            Refused::Scheme => self.refused_scheme += 1,
            Refused::TooMany { .. } => self.refused_too_many += 1,
            Refused::Length(_) | Refused::Contradiction { .. } => self.refused_length += 1,
        }
    }
}
