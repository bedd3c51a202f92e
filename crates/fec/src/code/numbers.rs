//! Sets of symbols.

/// A set of symbol numbers of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Numbers([u64; 4]);

impl Numbers {
    /// Adds a number; returns `false` if the set had it.
    pub(super) fn insert(&mut self, number: u8) -> bool {
        let (word, bit) = place(number);
        let before = self.0[word];
        self.0[word] |= bit;
        before & bit == 0
    }

    /// The `count` lowest numbers of the set.
    pub(super) fn first(&self, mut count: usize) -> Self {
        let mut first = Self::default();
        for (to, mut from) in first.0.iter_mut().zip(self.0) {
            let here = from.count_ones() as usize;
            if here <= count {
                *to = from;
                count -= here;
                continue;
            }
            for _ in 0..std::mem::take(&mut count) {
                *to |= from & from.wrapping_neg();
                from &= from - 1;
            }
        }
        first
    }

    /// The numbers below `k` that are not in the set.
    pub(super) fn missing(&self, k: usize) -> Self {
        let mut missing = Self::default();
        for (i, (to, from)) in missing.0.iter_mut().zip(self.0).enumerate() {
            let below = match k.saturating_sub(64 * i) {
                bits @ 0..64 => (1 << bits) - 1,
                _ => u64::MAX,
            };
            *to = !from & below;
        }
        missing
    }

    /// Writes the numbers to `list` in ascending order, and returns that part of it.
    pub(super) fn list<'a>(&self, list: &'a mut [u8; 256]) -> &'a [u8] {
        let mut count = 0;
        for (i, mut word) in self.0.into_iter().enumerate() {
            while word != 0 {
                list[count] = (64 * i) as u8 + word.trailing_zeros() as u8;
                count += 1;
                word &= word - 1;
            }
        }
        &list[..count]
    }
}

fn place(number: u8) -> (usize, u64) {
    (usize::from(number / 64), 1 << (number % 64))
}
