//! Parts that came before the opening of their stream.
//!
//! Held parts count as received and are not retransmitted. A lost opening therefore delays only its
//! own stream.

use std::collections::VecDeque;

use crate::wire::Part;

/// Maximum number of held bytes.
const HELD_MAX: usize = 1 << 20;

/// Approximate memory of a part beside its bytes.
const PART_COST: usize = 48;

/// Waiting parts, in the order of arrival.
#[derive(Debug, Default)]
pub(super) struct Held {
    parts: VecDeque<Box<[u8]>>,
    bytes: usize,
}

impl Held {
    /// Returns true if these parts fit. A segment that is not held must not count as received.
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

    /// Removes and returns all parts, to be tried again.
    pub fn take(&mut self) -> VecDeque<Box<[u8]>> {
        self.bytes = 0;
        std::mem::take(&mut self.parts)
    }
}
