//! Which streams there have been.

use crate::{ranges::RangeSet, wire::StreamId};

/// Numbers of streams that one side has opened: some may be missing as yet, as openings may overtake each
/// other; those of the other parity are never there.
#[derive(Clone, Debug, Default)]
pub(super) struct Ids {
    opened: RangeSet,
}

impl Ids {
    /// Adds one; whether it was not there.
    pub(super) fn insert(&mut self, stream: StreamId) -> bool {
        self.opened.insert(stream / 2)
    }

    pub(super) fn contains(&self, stream: StreamId) -> bool {
        self.opened.contains(stream / 2)
    }

    /// The turn after the latest one, from 0.
    pub(super) fn end(&self) -> u64 {
        self.opened.end()
    }
}
