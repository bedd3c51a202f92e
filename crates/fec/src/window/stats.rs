//! Counters.

/// Counters of a [`WindowEncoder`](super::WindowEncoder) since its construction.
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
    /// Extra repair packets because no more data came for a while.
    pub repairs_tail: u64,
    /// Repair packets sent before their delay was over, because too many waited.
    pub repairs_early: u64,
    /// Repair packets never computed, as earlier ones were not fetched.
    pub repairs_dropped: u64,
    /// Packets refused because they were too long.
    pub too_long: u64,
}

/// Counters of a [`WindowDecoder`](super::WindowDecoder) since its construction.
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
    /// Ones of these without new information: their window was complete, or they followed from
    /// others.
    pub repairs_spare: u64,
    /// Ones of these whose window was not, or not wholly, within the span.
    pub repairs_far: u64,
    /// Ones of these dropped when their windows left the span.
    pub repairs_expired: u64,
    /// Ones of these dropped for others because there were too many.
    pub repairs_evicted: u64,
    /// Duplicates of data packets that had been received or recovered before.
    pub duplicates: u64,
    /// Data packets behind the span or too far ahead, so that duplicates could not be detected;
    /// also those with the number of another packet but other content.
    pub late: u64,
    /// Times that enough consecutive packets were far off, so that everything was dropped and the
    /// span moved to them.
    pub resyncs: u64,
    /// Data packets that left the span neither received nor recovered.
    pub lost: u64,
    /// Times that the stored repair packets gave invalid data and were dropped: some were not of
    /// one encoder.
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
