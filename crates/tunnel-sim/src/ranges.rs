//! Sets of positions.

use std::{collections::BTreeMap, ops::Range};

/// Disjoint ranges that do not touch.
#[derive(Clone, Debug, Default)]
pub struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds a range, whatever of it is there already.
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

    /// Whether all of a range is there.
    pub fn contains(&self, range: &Range<u64>) -> bool {
        let run = self.last_from(range.start);
        run.is_some_and(|(_, until)| until >= range.end)
    }

    /// Where the last run ends that begins below `range.end`, if it reaches into the range.
    pub fn overlap(&self, range: &Range<u64>) -> Option<u64> {
        let last = range.end.checked_sub(1)?;
        let (_, until) = self.last_from(last)?;
        (until > range.start).then_some(until)
    }

    /// The first position from 0 on that is missing.
    pub fn prefix(&self) -> u64 {
        self.0.get(&0).copied().unwrap_or(0)
    }
}
