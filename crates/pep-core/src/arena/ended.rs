//! Recently ended flows, for a successor: their peers may not know of the end yet.
//!
//! ```text
//!   number of the last one: 9          |  8  |  9  |  6  |  7  |    6 is overwritten next
//! ```
//!
//! Each flow has its own place, given by its number, so that nothing else has to be written with
//! it.

use crate::arena::{Part, Words};

/// Number of ended flows remembered: more than end in a few seconds.
pub const ENDINGS: usize = 16 << 10;

/// Bytes per ended flow.
pub(super) const ENDING_BYTES: usize = 32;

const NUMBER: usize = 0;
const TOKEN: usize = 8;
const PEER: usize = 24;

/// Bits of the first word for the kind of end; the number is above.
const HOW_BITS: u32 = 8;

/// A flow that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    /// Token by which the peer knows the flow.
    pub token: u128,
    /// [`name_hash`](super::name_hash) of the peer's name.
    pub peer: u64,
    /// Kind of end, as a code of the tunnel.
    pub how: u8,
}

/// Ended flows in shared memory:
///
/// ```text
///   0  number and kind of end; 0 while empty, or being written | 8 token (16 bytes) | 24 peer
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Endings<'a, W> {
    words: Part<'a, W>,
    count: usize,
}

impl<'a, W: Words> Endings<'a, W> {
    /// Returns the last `count` entries, stored from this offset on.
    ///
    /// # Panics
    /// When `count` is 0.
    pub fn new(words: &'a W, start: usize, count: usize) -> Self {
        assert!(count > 0);
        let words = Part { words, start };
        Self { words, count }
    }

    /// Writes the entry of that number, from 1, over the oldest one. A crash meanwhile leaves the
    /// others intact.
    pub fn write(&self, number: u64, ending: &Ending) {
        let at = place((number % self.count as u64) as usize);
        let first = number << HOW_BITS | u64::from(ending.how);
        self.words.store(at + NUMBER, 0);
        self.words.store(at + TOKEN, ending.token as u64);
        self.words
            .store(at + TOKEN + 8, (ending.token >> 64) as u64);
        self.words.store(at + PEER, ending.peer);
        self.words.store(at + NUMBER, first);
    }

    /// Returns the valid entries that `wanted` accepts, with their numbers, the oldest first.
    pub fn read(&self, wanted: impl Fn(&Ending) -> bool) -> Vec<(u64, Ending)> {
        let read = |index| {
            let at = place(index);
            let first = self.words.load(at + NUMBER);
            let [low, high] = [TOKEN, TOKEN + 8].map(|part| self.words.load(at + part));
            let ending = Ending {
                token: u128::from(low) | u128::from(high) << 64,
                peer: self.words.load(at + PEER),
                how: first as u8,
            };
            (first >> HOW_BITS, ending)
        };
        let found = (0..self.count).map(read);
        let found = found.filter(|(number, ending)| *number > 0 && wanted(ending));
        let mut found: Vec<_> = found.collect();
        found.sort_unstable_by_key(|(number, _)| *number);
        found
    }
}

fn place(index: usize) -> usize {
    index * ENDING_BYTES
}
