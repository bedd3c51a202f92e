//! Flows that have ended, for a successor: their peers may not have heard of it.
//!
//! ```text
//!   number of the last one: 9          |  8  |  9  |  6  |  7  |       the oldest one makes room for the next
//! ```
//!
//! Each is in a place of its own, by its number, so that nothing else has to be written with it.

use crate::arena::{Part, Words};

/// Flows are remembered that have ended last, so many: more than end in a few seconds.
pub const ENDINGS: usize = 16 << 10;

/// Of one.
pub(super) const ENDING_BYTES: usize = 32;

const NUMBER: usize = 0;
const TOKEN: usize = 8;
const PEER: usize = 24;

/// Bits of the first word that say how; its number is above.
const HOW_BITS: u32 = 8;

/// A flow that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    /// By which the peer knows it.
    pub token: u128,
    /// [`name_hash`](super::name_hash) of the peer's name.
    pub peer: u64,
    /// How it has ended: what the tunnel calls that.
    pub how: u8,
}

/// Where they are:
///
/// ```text
///   0  number and how; 0 while there is nothing, or something is being written | 8 token (16 bytes) | 24 peer
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Endings<'a, W> {
    words: Part<'a, W>,
    count: usize,
}

impl<'a, W: Words> Endings<'a, W> {
    /// The last `count` ones, from this offset on.
    ///
    /// # Panics
    /// When none are.
    pub fn new(words: &'a W, start: usize, count: usize) -> Self {
        assert!(count > 0);
        let words = Part { words, start };
        Self { words, count }
    }

    /// Writes the one of that number, from 1: in the place of the oldest one. A process that ends meanwhile leaves the others.
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

    /// Those that were written and are wanted, with their numbers, the oldest one first.
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
