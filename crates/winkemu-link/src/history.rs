//! Queue occupancy over time, in bounded memory.

use serde::{Deserialize, Serialize};

use super::{NANOS_PER_SECOND, Nanos};

/// Slices kept: 16 s at 1 ms each, 4.5 hours at 1 s each. Some 500 KB.
const SLICES_MAX: u64 = 16_384;
/// Initial length of a slice. Above [`SLICES_MAX`], neighbours merge and the length doubles.
const WIDTH: Nanos = NANOS_PER_SECOND / 1_000;

/// Queue occupancy in bytes since the link began, in slices of equal length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueHistory {
    width: Nanos,
    slices: Vec<Slice>,
    /// Time up to which the slices are complete.
    until: Nanos,
    /// Bytes in the queue since `until`.
    bytes: u64,
}

/// Slice of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Slice {
    /// Bytes times the nanoseconds that they waited.
    area: u128,
    peak: u64,
}

impl Slice {
    fn add(&mut self, bytes: u64, time: Nanos) {
        self.area += u128::from(bytes) * u128::from(time);
        self.peak = self.peak.max(bytes);
    }

    fn join(self, other: Self) -> Self {
        Self {
            area: self.area + other.area,
            peak: self.peak.max(other.peak),
        }
    }
}

/// Time-weighted queue occupancy, in bytes or as a share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Occupancy {
    /// Mean over time.
    pub mean: f64,
    /// Occupancy not exceeded for half of the time.
    pub p50: f64,
    /// Occupancy not exceeded for 95 % of the time.
    pub p95: f64,
    /// Maximum.
    pub max: f64,
}

impl Occupancy {
    /// Multiplies each figure by `factor`.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self {
            mean: self.mean * factor,
            p50: self.p50 * factor,
            p95: self.p95 * factor,
            max: self.max * factor,
        }
    }
}

impl Default for QueueHistory {
    fn default() -> Self {
        Self {
            width: WIDTH,
            slices: Vec::new(),
            until: 0,
            bytes: 0,
        }
    }
}

impl QueueHistory {
    /// Records that the queue holds `bytes` from `now` on. Times must not decrease.
    pub fn note(&mut self, now: Nanos, bytes: u64) {
        self.extend(now);
        self.bytes = bytes;
    }

    /// Extends the present state to `now`.
    pub(crate) fn extend(&mut self, now: Nanos) {
        while now.div_ceil(self.width) > SLICES_MAX {
            self.halve();
        }
        while self.until < now {
            let index = (self.until / self.width) as usize;
            if index == self.slices.len() {
                self.slices.push(Slice::default());
            }
            let end = now.min((index as u64 + 1) * self.width);
            self.slices[index].add(self.bytes, end - self.until);
            self.until = end;
        }
    }

    fn halve(&mut self) {
        let join = |pair: &[Slice]| pair.iter().fold(Slice::default(), |a, b| a.join(*b));
        self.slices = self.slices.chunks(2).map(join).collect();
        self.width *= 2;
    }

    /// Figures of a period, in bytes; `None` if the history covers none of it.
    ///
    /// Both ends are rounded outwards to whole slices: a 16,384th of the time, or a millisecond, or
    /// less. Percentiles are taken over the means of slices.
    pub fn over(&self, from: Nanos, to: Nanos) -> Option<Occupancy> {
        let first = (from / self.width) as usize;
        let last = to.min(self.until).div_ceil(self.width) as usize;
        let slices = self
            .slices
            .get(first..last)
            .filter(|some| !some.is_empty())?;
        let end = self.until.min(last as u64 * self.width);
        let time = end - first as u64 * self.width;
        let area: u128 = slices.iter().map(|slice| slice.area).sum();
        let mut means: Vec<_> = (first..last).map(|index| self.mean(index)).collect();
        means.sort_by(f64::total_cmp);
        Some(Occupancy {
            mean: area as f64 / time as f64,
            p50: rank(&means, 0.5),
            p95: rank(&means, 0.95),
            max: slices.iter().map(|slice| slice.peak).max()? as f64,
        })
    }

    fn mean(&self, index: usize) -> f64 {
        // The last slice may still be incomplete.
        let time = self.width.min(self.until - index as u64 * self.width);
        self.slices[index].area as f64 / time as f64
    }
}

/// Smallest value with `share` of all values at or below it. `sorted` is not empty.
fn rank(sorted: &[f64], share: f64) -> f64 {
    let place = (sorted.len() as f64 * share).ceil() as usize;
    sorted[place.max(1) - 1]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_queue_that_fills_and_empties_has_the_figures_one_can_work_out() {
        let mut history = QueueHistory::default();
        // 90 ms of nothing, 8 ms of 1000 bytes, 2 ms of 3000.
        history.note(90 * WIDTH, 1000);
        history.note(98 * WIDTH, 3000);
        history.note(100 * WIDTH, 0);
        let all = history.over(0, Nanos::MAX).unwrap();
        assert_eq!(
            (all.mean, all.p50, all.p95, all.max),
            (140.0, 0.0, 1000.0, 3000.0)
        );
        let end = history.over(90 * WIDTH, 100 * WIDTH).unwrap();
        assert_eq!((end.mean, end.p50, end.p95), (1400.0, 1000.0, 3000.0));
        assert_eq!(
            history.over(100 * WIDTH, 200 * WIDTH),
            None,
            "outside the history"
        );
        assert_eq!(history.over(3 * WIDTH, 3 * WIDTH), None, "empty period");
        assert_eq!(end.times(0.5).max, 1500.0);
    }

    #[test]
    fn memory_is_bounded_however_long_it_runs() {
        let mut history = QueueHistory::default();
        let year = 365 * 86_400 * NANOS_PER_SECOND;
        history.note(NANOS_PER_SECOND, 500);
        history.note(year, 0);
        history.extend(2 * year);
        assert!(history.slices.len() as u64 <= SLICES_MAX);
        assert_eq!(history.until, 2 * year);
        let figures = history.over(0, 2 * year).unwrap();
        assert!((figures.mean - 250.0).abs() < 1e-4, "{figures:?}");
    }

    proptest! {
        /// Conservation: the area equals that of a naive sum for any sequence of events.
        #[test]
        fn the_area_is_kept(steps in proptest::collection::vec((0..40_000_000_u64, 0..9_000_u64), 1..3_000)) {
            let (mut history, mut now, mut bytes) = (QueueHistory::default(), 0, 0);
            let (mut area, mut peak) = (0_u128, 0);
            for (wait, next) in steps {
                now += wait;
                area += u128::from(wait) * u128::from(bytes);
                peak = if wait > 0 { peak.max(bytes) } else { peak };
                history.note(now, next);
                bytes = next;
            }
            let kept: u128 = history.slices.iter().map(|slice| slice.area).sum();
            prop_assert_eq!(kept, area);
            prop_assert_eq!(history.slices.iter().map(|slice| slice.peak).max().unwrap_or(0), peak);
            prop_assert_eq!(history.slices.len() as u64, now.div_ceil(history.width));
        }
    }
}
