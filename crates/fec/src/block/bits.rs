//! A set of the numbers from 0 to 255.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bits([u64; 4]);

impl Bits {
    pub(super) const EMPTY: Self = Self([0; 4]);

    pub(super) fn contains(&self, number: u8) -> bool {
        let (word, bit) = place(number);
        self.0[word] & bit != 0
    }

    /// Adds a number, and returns whether it is new.
    pub(super) fn insert(&mut self, number: u8) -> bool {
        let (word, bit) = place(number);
        let new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        new
    }

    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Largest number plus one; 0 of an empty set.
    pub(super) fn end(&self) -> usize {
        let last = self.0.iter().rposition(|word| *word != 0);
        last.map_or(0, |word| {
            64 * word + 64 - self.0[word].leading_zeros() as usize
        })
    }
}

fn place(number: u8) -> (usize, u64) {
    (usize::from(number) / 64, 1 << (number % 64))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn is_a_set(numbers: Vec<u8>) {
            let mut bits = Bits::default();
            let mut model = BTreeSet::new();
            for number in numbers {
                prop_assert_eq!(bits.insert(number), model.insert(number));
                prop_assert_eq!(bits.len(), model.len());
                prop_assert_eq!(bits.end(), model.last().map_or(0, |last| usize::from(*last) + 1));
            }
            for number in 0..=255 {
                prop_assert_eq!(bits.contains(number), model.contains(&number));
            }
        }
    }
}
