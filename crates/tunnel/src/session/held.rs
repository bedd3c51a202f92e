//! Parts of segments that came before the opening of the stream that they speak of.
//!
//! They count as received, so that they need not come again: an opening that was lost
//! delays its stream, but what follows it is not sent twice, and no other stream waits.

use std::collections::VecDeque;

use crate::wire::Part;

/// The most bytes that are held.
const HELD_MAX: usize = 1 << 20;

/// What a part needs beside its bytes, about.
const PART_COST: usize = 48;

/// Parts that wait, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Held {
    parts: VecDeque<Box<[u8]>>,
    bytes: usize,
}

impl Held {
    /// Whether there is room for these parts. A segment that is not held must not count as received.
    pub fn has_room(&self, parts: &[u8]) -> bool {
        self.bytes + parts.len() <= HELD_MAX
    }

    /// Holds a part.
    pub fn push(&mut self, part: &Part<'_>) {
        let mut bytes = Vec::with_capacity(part.len(true));
        part.emit(true, &mut bytes);
        self.bytes += bytes.len() + PART_COST;
        self.parts.push_back(bytes.into());
    }

    /// Takes all of them out, to be tried again.
    pub fn take(&mut self) -> VecDeque<Box<[u8]>> {
        self.bytes = 0;
        std::mem::take(&mut self.parts)
    }
}
