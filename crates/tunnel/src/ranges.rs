//! Sets of numbers that come mostly in runs.

use std::{collections::BTreeMap, ops::Range};

/// A set of numbers, kept as runs: disjoint, not touching. An operation takes logarithmic time in the
/// number of runs, for each run that it changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeSet {
    /// By first number; after the last one.
    runs: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// Adds a number; whether it was not there.
    pub(crate) fn insert(&mut self, number: u64) -> bool {
        let before = self.runs.range(..=number).next_back();
        let before = before.map(|(start, end)| (*start, *end));
        if before.is_some_and(|(_, end)| number < end) {
            return false;
        }
        let start = before
            .filter(|(_, end)| *end == number)
            .map_or(number, |run| run.0);
        let end = self.runs.remove(&(number + 1)).unwrap_or(number + 1);
        self.runs.insert(start, end);
        true
    }

    /// Takes numbers out, and hands over those that were there, as runs in rising order.
    pub(crate) fn take(&mut self, numbers: Range<u64>, mut taken: impl FnMut(Range<u64>)) {
        if numbers.is_empty() {
            return;
        }
        let before = self.runs.range(..numbers.start).next_back();
        if let Some((start, end)) = before.map(|(start, end)| (*start, *end))
            && end > numbers.start
        {
            // Cut in two; the loop below deals with the second one.
            self.runs.insert(start, numbers.start);
            self.runs.insert(numbers.start, end);
        }
        while let Some((start, end)) = self.first_from(numbers.start)
            && start < numbers.end
        {
            self.runs.remove(&start);
            if end > numbers.end {
                self.runs.insert(numbers.end, end);
            }
            taken(start..end.min(numbers.end));
        }
    }

    fn first_from(&self, number: u64) -> Option<(u64, u64)> {
        let run = self.runs.range(number..).next();
        run.map(|(start, end)| (*start, *end))
    }

    /// How many runs there are.
    pub(crate) fn runs_len(&self) -> usize {
        self.runs.len()
    }

    /// Takes out the first run if it begins with this number, and returns the number after it.
    pub(crate) fn take_run_at(&mut self, number: u64) -> Option<u64> {
        self.runs.remove(&number)
    }

    /// Runs that begin at or after a number, in rising order.
    pub(crate) fn from(&self, number: u64) -> impl Iterator<Item = Range<u64>> {
        self.runs.range(number..).map(|(start, end)| *start..*end)
    }

    /// All runs, the highest first.
    pub(crate) fn descending(&self) -> impl Iterator<Item = Range<u64>> {
        self.runs.iter().rev().map(|(start, end)| *start..*end)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_set(steps in prop::collection::vec((any::<bool>(), 0_u64..60, 0_u64..12), 1..200)) {
            let (mut set, mut model) = (RangeSet::default(), BTreeSet::new());
            for (insert, from, length) in steps {
                if insert {
                    prop_assert_eq!(set.insert(from), model.insert(from));
                } else {
                    let mut taken = Vec::new();
                    set.take(from..from + length, |run| taken.extend(run));
                    let expected: Vec<_> = model.range(from..from + length).copied().collect();
                    model.retain(|n| !expected.contains(n));
                    prop_assert_eq!(taken, expected);
                }
                let runs: Vec<_> = set.from(0).collect();
                prop_assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start));
                prop_assert_eq!(runs.len(), set.runs_len());
                prop_assert!(set.descending().eq(runs.iter().rev().cloned()));
                prop_assert!(runs.into_iter().flatten().eq(model.iter().copied()));
            }
        }
    }
}
