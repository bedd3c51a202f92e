//! Serialiser: puts bytes onto the wire at a variable rate, in exact integer arithmetic.

use super::{FOREVER, Nanos, config::RateModel, trace::Trace};

/// Work units per byte. One unit is a billionth of a bit, so a rate in bit/s is work per
/// nanosecond.
const WORK_PER_BYTE: u64 = 8_000_000_000;

/// Rate of the wire at an instant, and the time until which it is known to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pace {
    /// Bit/s; `None` without a limit, 0 when stopped.
    pub(crate) rate: Option<u64>,
    /// First instant at which the rate may differ.
    pub(crate) until: Nanos,
}

/// Rate over time.
#[derive(Debug, Clone)]
pub(crate) enum RateSchedule {
    Unlimited,
    Fixed(u64),
    Trace(Trace<u64>),
}

impl RateSchedule {
    pub(crate) fn new(model: &RateModel) -> Self {
        match model {
            RateModel::Unlimited => Self::Unlimited,
            RateModel::Fixed(rate) => Self::Fixed(rate.bits_per_second()),
            RateModel::Trace(trace) => Self::Trace(trace.clone()),
        }
    }

    pub(crate) fn at(&self, now: Nanos) -> Pace {
        let (rate, until) = match self {
            Self::Unlimited => (None, FOREVER),
            Self::Fixed(rate) => (Some(*rate), FOREVER),
            Self::Trace(trace) => {
                let (rate, until) = trace.at(now);
                (Some(rate), until)
            }
        };
        Pace { rate, until }
    }
}

/// Result of [`Serialiser::step`] at its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The last bit has left; the next packet may start now.
    Finished,
    /// The rate may have changed: look it up and call [`Serialiser::resume`].
    Repace,
}

/// Serialiser for one packet at a time.
///
/// A packet's last bit leaves at the first whole nanosecond at or after its exact time. The time
/// lost by this rounding is credited to the next packet, so a busy wire sends exactly `rate` bits
/// per second. An idle wire discards the credit.
#[derive(Debug, Clone, Default)]
pub(crate) struct Serialiser {
    /// Work left of the current packet, as of `from`.
    left: u64,
    from: Nanos,
    rate: Option<u64>,
    finishes: bool,
    deadline: Option<Nanos>,
    credit: u64,
}

impl Serialiser {
    /// Time of the next [`Self::step`]; `None` while idle.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        self.deadline
    }

    /// Starts a packet of `bytes` on the wire. The serialiser must be idle.
    pub(crate) fn start(&mut self, bytes: u64, now: Nanos, pace: Pace) {
        debug_assert!(self.deadline.is_none(), "one packet at a time");
        let work = bytes * WORK_PER_BYTE;
        self.left = work.saturating_sub(self.credit);
        self.credit -= self.credit.min(work);
        self.resume(now, pace);
    }

    /// Continues at this rate from `now`.
    pub(crate) fn resume(&mut self, now: Nanos, pace: Pace) {
        self.from = now;
        self.rate = pace.rate;
        let finish = match pace.rate {
            None => now,
            Some(0) => FOREVER,
            Some(rate) => now.saturating_add(self.left.div_ceil(rate)),
        };
        self.finishes = finish <= pace.until;
        self.deadline = Some(finish.min(pace.until));
    }

    /// Accounts for the work done up to the deadline, which has been reached.
    pub(crate) fn step(&mut self) -> Step {
        let Some(deadline) = self.deadline else {
            return Step::Finished;
        };
        // No more than `left + rate`, because the deadline never lies beyond the finish.
        let done = self.rate.unwrap_or(0).saturating_mul(deadline - self.from);
        if self.finishes {
            self.credit += done.saturating_sub(self.left);
            self.deadline = None;
            return Step::Finished;
        }
        self.left -= done.min(self.left);
        Step::Repace
    }

    /// Records that the wire is idle and discards the credit.
    pub(crate) fn idle(&mut self) {
        self.credit = 0;
    }
}
