//! Set of stream numbers that have been opened.

use crate::{ranges::RangeSet, wire::StreamId};

/// Numbers of streams that one end has opened. Some may be missing temporarily, as openings may
/// overtake each other. Contains only numbers of one parity.
#[derive(Clone, Debug, Default)]
pub(super) struct Ids {
    opened: RangeSet,
    count: u64,
}

impl Ids {
    /// Adds a stream; returns true if it is new.
    pub(super) fn insert(&mut self, stream: StreamId) -> bool {
        let is_new = self.opened.insert(stream / 2);
        self.count += u64::from(is_new);
        is_new
    }

    pub(super) fn contains(&self, stream: StreamId) -> bool {
        self.opened.contains(stream / 2)
    }

    /// Returns the number of streams missing before the highest one, or before this one if that is
    /// higher.
    pub(super) fn missing(&self, stream: StreamId) -> u64 {
        self.opened.end().max(stream / 2) - self.count
    }
}
