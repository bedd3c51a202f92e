//! Round trip times, and the lateness of reports.

use std::time::Duration;

use crate::window::{Extreme, Windowed};

/// Factor on the initial RTT before there is a sample: the path may be much slower than configured.
/// RFC 9002 §6.2.2 takes three times its initial value, too.
const UNKNOWN_FACTOR: u32 = 3;
/// Maximum factor by which one sample may exceed the estimate. A queue that stood still for minutes
/// is not a round trip.
const JUMP: u32 = 8;
const JUMP_FLOOR: Duration = Duration::from_millis(100);
/// Window of the minimum RTT: values are kept for one to two times this.
const MEMORY: Duration = Duration::from_secs(10);
/// Window of the long-term minimum, as paths hardly ever change their length more often.
const MEMORY_LONG: Duration = Duration::from_secs(600);
const TICK: Duration = Duration::from_millis(1);

/// RTT estimates as in RFC 6298 and RFC 9002 §5.
#[derive(Clone, Debug)]
pub(super) struct Rtt {
    smoothed: Duration,
    variation: Duration,
    latest: Duration,
    minimum: Windowed,
    /// RTT with an empty queue.
    empty: Windowed,
    sampled: bool,
}

impl Rtt {
    pub(super) fn new(guess: Duration) -> Self {
        Self {
            smoothed: guess,
            variation: Duration::ZERO,
            latest: guess,
            minimum: Windowed::new(Extreme::Min, MEMORY),
            empty: Windowed::new(Extreme::Min, MEMORY_LONG),
            sampled: false,
        }
    }

    pub(super) fn on_sample(&mut self, now: Duration, sample: Duration) {
        self.minimum.add(now, sample);
        self.empty.add(now, sample);
        self.latest = sample;
        let counted = sample.min(self.smoothed * JUMP + JUMP_FLOOR);
        if !self.sampled {
            self.sampled = true;
            self.smoothed = counted;
            return;
        }
        self.variation = (self.variation * 3 + self.smoothed.abs_diff(counted)) / 4;
        // A low sample is never an accident, so it gets more weight.
        let weight = if counted < self.smoothed / 2 { 2 } else { 8 };
        self.smoothed = (self.smoothed * (weight - 1) + counted) / weight;
    }

    pub(super) fn smoothed(&self) -> Duration {
        self.smoothed
    }

    pub(super) fn latest(&self) -> Duration {
        self.latest
    }

    pub(super) fn variation(&self) -> Duration {
        self.variation
    }

    pub(super) fn minimum(&self) -> Duration {
        self.minimum.get().unwrap_or(self.smoothed)
    }

    pub(super) fn queue(&self) -> Duration {
        let empty = self.empty.get().unwrap_or(self.smoothed);
        self.smoothed.saturating_sub(empty)
    }

    /// Resets the estimates to an empty queue.
    pub(super) fn drain(&mut self) {
        self.smoothed -= self.queue();
        self.variation = Duration::ZERO;
        self.latest = self.latest.min(self.smoothed);
    }

    /// Returns the time after which a packet has either been reported or is lost.
    pub(super) fn patience(&self) -> Duration {
        if !self.sampled {
            return self.smoothed * UNKNOWN_FACTOR;
        }
        self.smoothed.max(self.latest) + self.margin()
    }

    /// Returns the margin by which an answer may exceed the round trip time.
    pub(super) fn margin(&self) -> Duration {
        (self.smoothed / 8).max(self.variation * 4).max(TICK)
    }
}

/// Divisor for the maximum drift between two clocks: crystals are good to 50 ppm each.
const DRIFT: u32 = 10_000;

/// Detector of reports that were held on the path, by a queue or by a modem that waited for its
/// link. The contents of such reports are older.
#[derive(Clone, Debug)]
pub(super) struct Lateness {
    /// Minimum of the local clock minus the receiver's when a report came, in microseconds, shifted
    /// to be positive.
    minimum: Windowed,
    origin: Option<i128>,
    last: Duration,
}

impl Lateness {
    pub(super) fn new() -> Self {
        Self {
            minimum: Windowed::new(Extreme::Min, MEMORY),
            origin: None,
            last: Duration::ZERO,
        }
    }

    /// Returns for how long a report made at `created_us` of the receiver's clock was held on the
    /// path.
    pub(super) fn on_report(&mut self, now: Duration, created_us: u64) -> Duration {
        let difference = now.as_micros() as i128 - i128::from(created_us);
        // An origin so distant that no difference of a working clock lies before it.
        let origin = *self.origin.get_or_insert(difference - i128::from(u32::MAX));
        let transit = u64::try_from(difference - origin).unwrap_or(0);
        let transit = Duration::from_micros(transit);
        self.minimum.raise(now.saturating_sub(self.last) / DRIFT);
        self.last = now;
        self.minimum.add(now, transit);
        transit.saturating_sub(self.minimum.get().unwrap_or(transit))
    }
}
