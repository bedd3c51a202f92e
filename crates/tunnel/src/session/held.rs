//! Segments that came before the opening of a stream that they speak of.
//!
//! They count as received, so that they need not come again: an opening that was lost
//! delays its stream, but what follows it is not sent twice.

use std::collections::VecDeque;

/// The most bytes that are held.
const HELD_MAX: usize = 1 << 20;

/// Segments that wait, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Held {
    segments: VecDeque<Box<[u8]>>,
    bytes: usize,
}

impl Held {
    /// Whether there is room for these parts. A segment that is not held must not count as received.
    pub fn has_room(&self, parts: &[u8]) -> bool {
        self.bytes + parts.len() <= HELD_MAX
    }

    /// Holds the parts of a segment.
    pub fn push(&mut self, parts: &[u8]) {
        self.bytes += parts.len();
        self.segments.push_back(parts.into());
    }

    /// Takes all of them out, to be tried again.
    pub fn take(&mut self) -> VecDeque<Box<[u8]>> {
        self.bytes = 0;
        std::mem::take(&mut self.segments)
    }
}
