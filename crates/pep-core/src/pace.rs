//! Pace of events that a peer can cause at will: a token bucket, and lines of the log behind one.

use std::time::Duration;

/// Token bucket (RFC 2697 with one rate): events at intervals, after a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    interval: Duration,
    burst: u32,
    /// Time at which the bucket is full.
    full: Duration,
}

impl Pace {
    /// Creates a full bucket for `burst` events, 1 or more, and one more each `interval`.
    pub const fn new(interval: Duration, burst: u32) -> Self {
        Self {
            interval,
            burst,
            full: Duration::ZERO,
        }
    }

    /// Returns how long the next event must wait.
    pub fn wait(&self, now: Duration) -> Duration {
        let after = self.full.max(now) + self.interval;
        let latest = now + self.interval * self.burst;
        after.saturating_sub(latest)
    }

    /// Records an event. Returns false, and records nothing, if it must wait.
    pub fn take(&mut self, now: Duration) -> bool {
        let may = self.wait(now).is_zero();
        if may {
            self.full = self.full.max(now) + self.interval;
        }
        may
    }
}

/// Pace of one kind of log line, and the lines left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lines {
    pace: Pace,
    left_out: u64,
}

/// Permission to log a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// Number of lines of this kind left out since the last one; `None` for 0.
    pub left_out: Option<u64>,
}

impl Lines {
    /// Creates the state without any line.
    pub const fn new(pace: Pace) -> Self {
        Self { pace, left_out: 0 }
    }

    /// Permits a line now, or counts it as left out.
    pub fn next(&mut self, now: Duration) -> Option<Line> {
        if self.pace.take(now) {
            let left_out = self.take_left_out();
            return Some(Line { left_out });
        }
        self.left_out += 1;
        None
    }

    /// Permits a line now if `total`, which others share, permits it as well. A line beyond its own
    /// pace takes nothing of the total.
    pub fn next_within(&mut self, now: Duration, total: &mut Pace) -> Option<Line> {
        if self.pace.wait(now).is_zero() && !total.take(now) {
            self.left_out += 1;
            return None;
        }
        self.next(now)
    }

    /// Returns the number of lines left out since the last call or line; `None` for 0.
    pub fn take_left_out(&mut self) -> Option<u64> {
        let left_out = std::mem::take(&mut self.left_out);
        (left_out > 0).then_some(left_out)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    proptest! {
        /// Against the definition: within any period no more than the burst and its share.
        #[test]
        fn no_period_has_more_events_than_its_share(
            gaps in prop::collection::vec(0_u32..30, 1..200),
            interval in 1_u32..50,
            burst in 1_u32..10,
        ) {
            let mut pace = Pace::new(MS * interval, burst);
            let (mut now, mut taken) = (Duration::from_secs(5), Vec::new());
            for gap in gaps {
                now += MS * gap;
                let wait = pace.wait(now);
                prop_assert!(wait <= MS * interval);
                if pace.take(now) {
                    prop_assert!(wait.is_zero());
                    taken.push(now);
                } else {
                    prop_assert!(!wait.is_zero());
                    let mut later = pace;
                    prop_assert!(later.take(now + wait), "it need not wait longer");
                }
            }
            for (first, begin) in taken.iter().enumerate() {
                for (last, end) in taken.iter().enumerate().skip(first) {
                    let share = (*end - *begin).as_millis() / u128::from(interval);
                    prop_assert!((last - first + 1) as u128 <= share + u128::from(burst));
                }
            }
        }
    }

    #[test]
    fn a_line_says_how_many_were_left_out() {
        let mut lines = Lines::new(Pace::new(MS * 100, 2));
        let logged: Vec<_> = (0..25)
            .filter_map(|turn| lines.next(MS * 10 * turn))
            .map(|line| line.left_out)
            .collect();
        assert_eq!(logged, [None, None, Some(8), Some(9)]);
        assert_eq!(lines.take_left_out(), Some(4));
        assert_eq!(lines.take_left_out(), None);
    }
}
