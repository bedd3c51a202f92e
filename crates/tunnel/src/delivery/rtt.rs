//! Round trip times, and how old a report is that comes late.

use std::time::Duration;

use crate::window::{Extreme, Windowed};

/// Before there is a sample the path may be so much slower than it was said to be (RFC 9002 §6.2.2 takes
/// three times its guess, too).
const UNKNOWN_FACTOR: u32 = 3;
/// One sample counts for at most this many times what was known, and a bit: a queue that stood still for
/// minutes is no round trip.
const JUMP: u32 = 8;
const JUMP_FLOOR: Duration = Duration::from_millis(100);
/// For how long a least value is remembered at least; twice as long at most.
const MEMORY: Duration = Duration::from_secs(10);
/// The same for the least of all: no path changes its length more often, as good as.
const MEMORY_LONG: Duration = Duration::from_secs(600);
const TICK: Duration = Duration::from_millis(1);

/// Estimates as in RFC 6298 and RFC 9002 §5.
#[derive(Clone, Debug)]
pub(super) struct Rtt {
    smoothed: Duration,
    variation: Duration,
    latest: Duration,
    minimum: Windowed,
    /// That of an empty queue.
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
        // No path is shorter by accident.
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

    /// The queue is empty now, whatever it was and however it varied.
    pub(super) fn drain(&mut self) {
        self.smoothed -= self.queue();
        self.variation = Duration::ZERO;
        self.latest = self.latest.min(self.smoothed);
    }

    /// After this time a packet has arrived, and its receiver has said so, or it is lost.
    pub(super) fn patience(&self) -> Duration {
        if !self.sampled {
            return self.smoothed * UNKNOWN_FACTOR;
        }
        self.smoothed.max(self.latest) + self.margin()
    }

    /// How much later than its round trip an answer may come.
    pub(super) fn margin(&self) -> Duration {
        (self.smoothed / 8).max(self.variation * 4).max(TICK)
    }
}

/// How fast two clocks drift apart at most, as a share of the time: crystals are good to 50 ppm each.
const DRIFT: u32 = 10_000;

/// Tells reports that were held on their way, by a queue or by a modem that waited for its link, from
/// those that came straight: what they say is older.
#[derive(Clone, Debug)]
pub(super) struct Lateness {
    /// Our clock minus the receiver's when a report came, in microseconds, moved into the positive: the least one.
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

    /// A report of `created_us` by the receiver's clock is here: for how long it was held on the way.
    pub(super) fn on_report(&mut self, now: Duration, created_us: u64) -> Duration {
        let difference = now.as_micros() as i128 - i128::from(created_us);
        // Some origin so far away that no difference of a working clock lies before it.
        let origin = *self.origin.get_or_insert(difference - i128::from(u32::MAX));
        let transit = u64::try_from(difference - origin).unwrap_or(0);
        let transit = Duration::from_micros(transit);
        self.minimum.raise(now.saturating_sub(self.last) / DRIFT);
        self.last = now;
        self.minimum.add(now, transit);
        transit.saturating_sub(self.minimum.get().unwrap_or(transit))
    }
}
