//! Replay protection: window of packet numbers that have arrived.

/// Maximum distance of a packet behind the highest number.
pub(crate) const WINDOW: u64 = 2048;

/// Words of the bitmap; the newest word replaces the oldest (RFC 6479).
const WORDS: usize = WINDOW as usize / 64 + 1;

/// Replay window: remembers the last 2048 packet numbers and rejects older ones.
#[derive(Debug)]
pub struct Window {
    /// Number after the highest that has arrived.
    next: u64,
    words: [u64; WORDS],
}

impl Default for Window {
    fn default() -> Self {
        Self {
            next: 0,
            words: [0; WORDS],
        }
    }
}

impl Window {
    /// Returns the number after the highest that has arrived.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns true if the number is neither known nor too old.
    #[must_use]
    pub fn is_new(&self, number: u64) -> bool {
        if number >= self.next {
            return true;
        }
        self.next - number <= WINDOW && self.words[word(number)] & bit(number) == 0
    }

    /// Records an authenticated packet. Returns true if its number is the highest so far.
    pub fn insert(&mut self, number: u64) -> bool {
        let newest = number >= self.next;
        if newest {
            self.advance(number);
        }
        self.words[word(number)] |= bit(number);
        newest
    }

    /// Clears the words between the highest number so far and this one.
    fn advance(&mut self, number: u64) {
        let first = self.next.div_ceil(64);
        let words = (number / 64 + 1).saturating_sub(first).min(WORDS as u64);
        for at in 0..words {
            self.words[((number / 64 - at) % WORDS as u64) as usize] = 0;
        }
        self.next = number.saturating_add(1);
    }
}

fn word(number: u64) -> usize {
    (number / 64 % WORDS as u64) as usize
}

fn bit(number: u64) -> u64 {
    1 << (number % 64)
}
