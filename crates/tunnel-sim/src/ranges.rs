//! Sets of positions.

use std::{collections::BTreeMap, ops::Range};

/// Disjoint ranges that do not touch.
#[derive(Clone, Debug, Default)]
pub struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds a range, which may overlap existing ones.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        while let Some((from, until)) = self.last_from(end).filter(|(_, until)| *until >= start) {
            self.0.remove(&from);
            start = start.min(from);
            end = end.max(until);
        }
        self.0.insert(start, end);
    }

    fn last_from(&self, at: u64) -> Option<(u64, u64)> {
        let (from, until) = self.0.range(..=at).next_back()?;
        Some((*from, *until))
    }

    /// Returns whether a range is completely contained.
    pub fn contains(&self, range: &Range<u64>) -> bool {
        let run = self.last_from(range.start);
        run.is_some_and(|(_, until)| until >= range.end)
    }

    /// Returns the end of the last run that begins below `range.end`, if it reaches into the range.
    pub fn overlap(&self, range: &Range<u64>) -> Option<u64> {
        let last = range.end.checked_sub(1)?;
        let (_, until) = self.last_from(last)?;
        (until > range.start).then_some(until)
    }

    /// Returns the first missing position.
    pub fn prefix(&self) -> u64 {
        self.0.get(&0).copied().unwrap_or(0)
    }
}
