//! Which streams there have been.

use crate::{ranges::RangeSet, wire::StreamId};

/// Numbers of streams that one side has opened: some may be missing as yet, as openings may overtake each
/// other; those of the other parity are never there.
#[derive(Clone, Debug, Default)]
pub(super) struct Ids {
    opened: RangeSet,
    count: u64,
}

impl Ids {
    /// Adds one; whether it was not there.
    pub(super) fn insert(&mut self, stream: StreamId) -> bool {
        let is_new = self.opened.insert(stream / 2);
        self.count += u64::from(is_new);
        is_new
    }

    pub(super) fn contains(&self, stream: StreamId) -> bool {
        self.opened.contains(stream / 2)
    }

    /// How many are missing before the highest one, or before this one if that is higher.
    pub(super) fn missing(&self, stream: StreamId) -> u64 {
        self.opened.end().max(stream / 2) - self.count
    }
}
