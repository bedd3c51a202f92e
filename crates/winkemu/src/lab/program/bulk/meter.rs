//! Meter of received bytes over time.

use std::time::{Duration, Instant};

use super::{Bulk, Point};

/// Counter of received bytes per interval.
#[derive(Debug)]
pub(super) struct Meter {
    start: Instant,
    duration: Duration,
    warmup: Duration,
    interval: Duration,
    bins: Vec<u64>,
    measured: u64,
    pub(super) total: u64,
    pub(super) first: Option<Duration>,
}

impl Meter {
    pub(super) fn new(bulk: &Bulk, start: Instant) -> Self {
        let bins = bulk.duration.as_nanos().div_ceil(bulk.interval.as_nanos());
        Self {
            start,
            duration: bulk.duration,
            warmup: bulk.warmup,
            interval: bulk.interval,
            bins: vec![0; usize::try_from(bins).expect("checked when the scenario was read")],
            measured: 0,
            total: 0,
            first: None,
        }
    }

    pub(super) fn count(&mut self, bytes: u64, now: Instant) {
        let at = now.duration_since(self.start);
        if at >= self.duration {
            return;
        }
        self.first.get_or_insert(at);
        self.total += bytes;
        if at >= self.warmup {
            self.measured += bytes;
        }
        let bin = at.as_nanos() / self.interval.as_nanos();
        self.bins[usize::try_from(bin).expect("below the number of bins")] += bytes;
    }

    /// Goodput after the warm-up, in bit/s.
    pub(super) fn goodput(&self) -> f64 {
        let window = (self.duration - self.warmup).as_secs_f64();
        self.measured as f64 * 8.0 / window
    }

    pub(super) fn series(&self) -> Vec<Point> {
        let interval = self.interval.as_secs_f64();
        let point = |(index, bytes): (usize, &u64)| {
            let begin = index as f64 * interval;
            let end = (begin + interval).min(self.duration.as_secs_f64());
            Point {
                t_s: end,
                bps: *bytes as f64 * 8.0 / (end - begin),
            }
        };
        self.bins.iter().enumerate().map(point).collect()
    }
}
