//! Sets of numbers that mostly come in runs.

use std::{collections::BTreeMap, ops::Range};

/// Set of numbers, stored as disjoint runs that do not touch. An operation takes logarithmic time
/// in the number of runs, per run that it changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeSet {
    /// Runs: first number to the number after the last.
    runs: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// Adds a number; returns true if it is new.
    pub(crate) fn insert(&mut self, number: u64) -> bool {
        if self.append(number..number + 1) {
            return true;
        }
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

    /// Adds numbers; returns true if one of them is new.
    pub(crate) fn insert_range(&mut self, numbers: Range<u64>) -> bool {
        if numbers.is_empty() {
            return false;
        }
        if self.append(numbers.clone()) {
            return true;
        }
        let before = self.runs.range(..=numbers.start).next_back();
        let before = before.map(|(start, end)| *start..*end);
        let before = before.filter(|run| run.end >= numbers.start);
        if before.as_ref().is_some_and(|run| run.end >= numbers.end) {
            return false;
        }
        let start = before.map_or(numbers.start, |run| run.start);
        let mut end = numbers.end;
        while let Some((next, after)) = self.first_from(start)
            && next <= end
        {
            self.runs.remove(&next);
            end = end.max(after);
        }
        self.runs.insert(start, end);
        true
    }

    /// Adds numbers if they extend the last run, the common case; returns true if so.
    fn append(&mut self, numbers: Range<u64>) -> bool {
        let last = self.runs.last_entry();
        let Some(mut last) = last.filter(|last| *last.get() == numbers.start) else {
            return false;
        };
        *last.get_mut() = numbers.end;
        true
    }

    /// Returns true if the set contains a number.
    pub(crate) fn contains(&self, number: u64) -> bool {
        let run = self.runs.range(..=number).next_back();
        run.is_some_and(|(_, end)| number < *end)
    }

    /// Returns true if the set contains one of these numbers or a neighbour of theirs, so that
    /// adding them would make no further run.
    pub(crate) fn touches(&self, numbers: Range<u64>) -> bool {
        let run = self.runs.range(..=numbers.end).next_back();
        run.is_some_and(|(_, end)| numbers.start <= *end)
    }

    /// Returns the number after the highest one, or 0.
    pub(crate) fn end(&self) -> u64 {
        self.runs.last_key_value().map_or(0, |(_, end)| *end)
    }

    /// Removes the first run if it begins at or before a number; returns the number after the run.
    pub(crate) fn take_run_up_to(&mut self, number: u64) -> Option<u64> {
        let first = self.runs.first_entry()?;
        (*first.key() <= number).then(|| first.remove())
    }

    /// Removes numbers, and passes those that were in the set to `taken`, as runs in rising order.
    pub(crate) fn take(&mut self, numbers: Range<u64>, mut taken: impl FnMut(Range<u64>)) {
        if numbers.is_empty() {
            return;
        }
        let before = self.runs.range(..numbers.start).next_back();
        if let Some((start, end)) = before.map(|(start, end)| (*start, *end))
            && end > numbers.start
        {
            // Split in two; the loop below handles the second part.
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

    /// Returns the number of runs.
    pub(crate) fn runs_len(&self) -> usize {
        self.runs.len()
    }

    /// Removes the first run if it begins with this number; returns the number after the run.
    pub(crate) fn take_run_at(&mut self, number: u64) -> Option<u64> {
        self.runs.remove(&number)
    }

    /// Returns runs that begin at or after a number, in rising order.
    pub(crate) fn from(&self, number: u64) -> impl Iterator<Item = Range<u64>> {
        self.runs.range(number..).map(|(start, end)| *start..*end)
    }

    /// Returns all runs, the highest first.
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
        fn it_is_a_set(steps in prop::collection::vec((0..3, 0_u64..60, 0_u64..12), 1..200)) {
            let (mut set, mut model) = (RangeSet::default(), BTreeSet::new());
            for (step, from, length) in steps {
                let range = from..from + length.max(1);
                let near = |n: &u64| n + 1 >= range.start && *n <= range.end;
                prop_assert_eq!(set.touches(range.clone()), model.iter().any(near));
                if step == 0 {
                    prop_assert_eq!(set.insert(from), model.insert(from));
                } else if step == 1 {
                    let before = model.len();
                    model.extend(from..from + length);
                    prop_assert_eq!(set.insert_range(from..from + length), model.len() > before);
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
                prop_assert!((0..80).all(|n| set.contains(n) == model.contains(&n)));
                prop_assert_eq!(set.end(), model.last().map_or(0, |last| last + 1));
                prop_assert!(set.descending().eq(runs.iter().rev().cloned()));
                prop_assert!(runs.into_iter().flatten().eq(model.iter().copied()));
            }
        }
    }
}
