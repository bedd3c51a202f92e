//! How long a transfer will take over a link that winks, by calculation: the model of Reynolds 2006,
//! section 3.3.
//!
//! A file takes `T0` over a link that is always up, which is `n = T0 / i` intervals, rounded up. Of these each is lost
//! with probability `p`, and sent again until it comes through. `h` of its retries fail with probability `p^h (1 - p)`,
//! which costs `c(h)`, what TCP has waited by then, and `h` intervals. Equation 3.11 is the delay to be expected:
//!
//! ```text
//! sum over r = 0..n, h = 1..H of  C(n, r) p^(r+h) (1-p)^(n-r+1) r (c(h) + h i)
//!     =  n p  sum over h = 1..H of  p^h (1-p) (c(h) + h i)
//! ```
//!
//! The sum over `r`, the intervals that are lost at first, is the mean of a binomial distribution. So no binomial
//! coefficient is needed and nothing overflows, as it did there (section 4.6) for large `n`. A transfer takes `T0` longer than
//! that, which the equation leaves out and the text adds (section 3.3.6, figure 4.20).
//!
//! Where this differs from the paper:
//!
//! - TCP gives up after the `H` retries of its table, and the equation counts transfers that end so as if they had taken no time.
//!   They are left out here, so that a worse link never seems to be a faster one; [`Prediction::gives_up`] says how many they are.
//!   It makes no difference below `p = 0.4`, where the paper ends: a part in a million.
//! - A node that has custody does not give up: equation 3.12 is summed without end.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Wink;

/// What TCP waits before each retry, in seconds, where it begins with a fast retransmission: the first column of table
/// 3.3. It has given up after nine minutes.
const WAITS: [f64; 15] = [
    0.2, 0.5, 1.5, 3.0, 6.0, 12.0, 24.0, 48.0, 64.0, 64.0, 64.0, 64.0, 64.0, 64.0, 64.0,
];

/// Retries after 0.2 and after 0.5 s come to nothing while the interval lasts that was lost (section 3.3.6).
const FAST: Duration = Duration::from_millis(200);
const SLOW: Duration = Duration::from_millis(500);

/// Whose time is predicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Model {
    /// A sender that knows when the link is up, and fills it then: `T0 / (1 - p)`, whatever the interval is (section
    /// 3.3.7, figure 3.7).
    Bound,
    /// A node ahead of the link holds the data and sends a lost interval again in the next: equation 3.12. As
    /// [`Tcp`](Self::Tcp) it lets the first retry cost nothing, and so it is below the bound, by `p T0` where the
    /// intervals divide `T0`.
    Custody,
    /// TCP from end to end: equation 3.11.
    Tcp,
    /// The same with `n` scaled by `1 + p` (equation 4.3), which came closer to what was measured.
    TcpScaled,
    /// The same, but a lost interval pays for each of its retries, also for the one that succeeds: `p^(h-1)` for
    /// `p^h`.
    ///
    /// The example of section 3.3.6 counts so: one interval that is lost and comes through at the first
    /// retry takes 1.86 + 1.5 s; in equation 3.11 it costs nothing. The paper notes that its model
    /// underestimates, most where `p` is low, and that scaling `n` by `1 / p` (equation 4.1) overflowed. That factor is
    /// this one. With custody it makes equation 3.12 the bound.
    TcpCharged,
}

impl Model {
    /// All of them, the fastest first.
    pub const ALL: [Self; 5] = [
        Self::Custody,
        Self::Bound,
        Self::Tcp,
        Self::TcpScaled,
        Self::TcpCharged,
    ];
}

/// Why nothing can be predicted.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum PredictError {
    /// The link is never up.
    #[error("p must be from 0 to below 1: a link that is down in all intervals carries nothing")]
    NeverUp,
    /// An interval without length.
    #[error("the interval must be longer than 0")]
    NoInterval,
    /// Nothing to transfer.
    #[error(
        "the time over a link that is always up must be longer than 0: it is how much there is to transfer"
    )]
    NothingToSend,
}

/// A transfer over a link that winks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    perfect: Duration,
    interval: Duration,
    p: f64,
}

impl Prediction {
    /// Of a transfer that takes `perfect` over this link when it is always up.
    ///
    /// # Errors
    /// When the link is never up, or a time is 0.
    pub fn new(perfect: Duration, wink: Wink) -> Result<Self, PredictError> {
        let p = wink.probability.get();
        if p >= 1.0 {
            Err(PredictError::NeverUp)
        } else if wink.interval.is_zero() {
            Err(PredictError::NoInterval)
        } else if perfect.is_zero() {
            Err(PredictError::NothingToSend)
        } else {
            Ok(Self {
                perfect,
                interval: wink.interval,
                p,
            })
        }
    }

    /// Intervals that the data fill: equation 3.3, rounded up as in section 3.3.7.
    pub fn intervals(&self) -> f64 {
        self.perfect.as_nanos().div_ceil(self.interval.as_nanos()) as f64
    }

    /// Seconds that the transfer is to be expected to take, if TCP does not [give up](Self::gives_up).
    ///
    /// It rises with `p`. It need not rise or fall with the interval: TCP's timers beat with it (figure 3.6), and
    /// rounding up makes it jump (figure 3.8).
    pub fn seconds(&self, model: Model) -> f64 {
        let (p, perfect) = (self.p, in_seconds(self.perfect));
        let delay = match model {
            Model::Bound => perfect * p / (1.0 - p),
            Model::Custody => self.intervals() * self.interval() * p * p / (1.0 - p),
            Model::Tcp => self.intervals() * self.delay(1.0 + p, p),
            Model::TcpScaled => self.scaled_intervals() * self.delay(1.0 + p, p),
            Model::TcpCharged => self.intervals() * self.delay(1.0, 1.0),
        };
        perfect + delay
    }

    /// Probability that TCP gives up before all has come through: that an interval is lost, and so are all its retries of
    /// table 3.3 and the one after them.
    pub fn gives_up(&self) -> f64 {
        let lost = libm::pow(self.p, (self.waits().len() + 2) as f64);
        -libm::expm1(self.intervals() * libm::log1p(-lost))
    }

    fn interval(&self) -> f64 {
        in_seconds(self.interval)
    }

    /// Equation 4.3, rounded up.
    fn scaled_intervals(&self) -> f64 {
        let exact = self.perfect.as_nanos() as f64 / self.interval.as_nanos() as f64;
        let scaled = exact * (1.0 + self.p);
        // What p is off by as a float must not make it an interval more.
        libm::ceil(scaled * (1.0 - 4.0 * f64::EPSILON)).max(self.intervals())
    }

    /// What TCP waits before each retry.
    fn waits(&self) -> &'static [f64] {
        match self.interval {
            interval if interval <= FAST => &WAITS,
            interval if interval <= SLOW => &WAITS[1..],
            _ => &WAITS[2..],
        }
    }

    /// The delay to be expected of an interval, in seconds, if it gets through.
    ///
    /// `free` is the weight of all that costs nothing, and `last` that of the worst of it. The first of TCP's waits comes
    /// `p` times as often as that, and so on.
    fn delay(&self, free: f64, last: f64) -> f64 {
        let (mut cost, mut delay) = (0.0, 0.0);
        let (mut weight, mut all) = (last, free);
        for wait in self.waits() {
            cost += wait + self.interval();
            weight *= self.p;
            delay += weight * cost;
            all += weight;
        }
        delay / all
    }
}

/// A duration in seconds, as it would be written: 1.86, not 1.8599999999999999.
pub fn in_seconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e9
}
