//! Predicted duration of a transfer over a link with short outages, by the model of Reynolds 2006,
//! section 3.3.
//!
//! A file takes `T0` over a link that is always up: `n = T0 / i` intervals, rounded up. Each
//! interval is lost with probability `p` and retransmitted until it comes through. `h` of its
//! retries fail with probability `p^h (1 - p)`. They cost `c(h)`, the sum of TCP's waits up to
//! then, and `h` intervals. Equation 3.11 is the expected delay:
//!
//! ```text
//! sum over r = 0..n, h = 1..H of  C(n, r) p^(r+h) (1-p)^(n-r+1) r (c(h) + h i)
//!     =  n p  sum over h = 1..H of  p^h (1-p) (c(h) + h i)
//! ```
//!
//! The sum over `r`, the intervals lost at first, is the mean of a binomial distribution. No
//! binomial coefficient is needed, so nothing overflows for large `n`, as it did in the paper
//! (section 4.6). A transfer takes `T0` longer: the equation leaves `T0` out, and the text adds it
//! (section 3.3.6, figure 4.20).
//!
//! Differences from the paper:
//!
//! - TCP gives up after the `H` retries of its table. The equation counts such transfers as if they
//!   had taken no time. This model leaves them out, so that a worse link never seems faster;
//!   [`Prediction::gives_up`] is their share. Below `p = 0.4`, where the paper ends, the difference
//!   is one part in a million.
//! - A node with custody does not give up: equation 3.12 is summed without end.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Wink;

/// TCP's wait before each retry, in seconds, after a fast retransmission: first column of table
/// 3.3. TCP gives up after nine minutes.
const WAITS: [f64; 15] = [
    0.2, 0.5, 1.5, 3.0, 6.0, 12.0, 24.0, 48.0, 64.0, 64.0, 64.0, 64.0, 64.0, 64.0, 64.0,
];

/// Retries after 0.2 s and 0.5 s fail while the lost interval still lasts (section 3.3.6).
const FAST: Duration = Duration::from_millis(200);
const SLOW: Duration = Duration::from_millis(500);

/// Transport whose duration is predicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Model {
    /// Sender that knows when the link is up and fills it then: `T0 / (1 - p)` for every interval
    /// (section 3.3.7, figure 3.7).
    Bound,
    /// Node ahead of the link that holds the data and retransmits a lost interval in the next one:
    /// equation 3.12. Like [`Tcp`](Self::Tcp), the model charges nothing for the first retry. It is
    /// therefore below the bound, by `p T0` if the interval divides `T0`.
    Custody,
    /// End-to-end TCP: equation 3.11.
    Tcp,
    /// [`Tcp`](Self::Tcp) with `n` scaled by `1 + p` (equation 4.3), which came closer to the
    /// measurements.
    TcpScaled,
    /// [`Tcp`](Self::Tcp), but a lost interval pays for every retry, including the successful one:
    /// `p^(h-1)` instead of `p^h`.
    ///
    /// The example of section 3.3.6 counts this way: one lost interval that comes through at the
    /// first retry takes 1.86 + 1.5 s. In equation 3.11 it costs nothing. The paper notes that its
    /// model underestimates, most at low `p`, and that scaling `n` by `1 / p` (equation 4.1)
    /// overflowed. This model applies that factor. With custody it makes equation 3.12 the bound.
    TcpCharged,
}

impl Model {
    /// All models, fastest first.
    pub const ALL: [Self; 5] = [
        Self::Custody,
        Self::Bound,
        Self::Tcp,
        Self::TcpScaled,
        Self::TcpCharged,
    ];
}

/// Input for which no prediction exists.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum PredictError {
    /// Link that is never up.
    #[error("p must be from 0 to below 1: a link that is always down carries nothing")]
    NeverUp,
    /// Interval of length 0.
    #[error("the interval must be longer than 0")]
    NoInterval,
    /// Transfer of length 0.
    #[error("the duration over a link that is always up must be longer than 0")]
    NothingToSend,
}

/// Transfer over a link with short outages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    perfect: Duration,
    interval: Duration,
    p: f64,
}

impl Prediction {
    /// Creates the prediction for a transfer that takes `perfect` over this link when it is always
    /// up.
    ///
    /// # Errors
    /// A link that is never up, or a time of 0.
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

    /// Expected duration in seconds, provided that TCP does not [give up](Self::gives_up).
    ///
    /// The duration rises with `p`. It is not monotonic in the interval: TCP's timers interfere
    /// with it (figure 3.6), and rounding up causes jumps (figure 3.8).
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

    /// Probability that TCP gives up before the transfer completes: an interval is lost, and so are
    /// all its retries of table 3.3 and the one after them.
    pub fn gives_up(&self) -> f64 {
        let lost = libm::pow(self.p, (self.waits().len() + 2) as f64);
        -libm::expm1(self.intervals() * libm::log1p(-lost))
    }

    fn interval(&self) -> f64 {
        in_seconds(self.interval)
    }

    /// Intervals by equation 4.3, rounded up.
    fn scaled_intervals(&self) -> f64 {
        let exact = self.perfect.as_nanos() as f64 / self.interval.as_nanos() as f64;
        let scaled = exact * (1.0 + self.p);
        // The rounding error of p as a float must not add an interval.
        libm::ceil(scaled * (1.0 - 4.0 * f64::EPSILON)).max(self.intervals())
    }

    /// TCP's waits before each retry.
    fn waits(&self) -> &'static [f64] {
        match self.interval {
            interval if interval <= FAST => &WAITS,
            interval if interval <= SLOW => &WAITS[1..],
            _ => &WAITS[2..],
        }
    }

    /// Expected delay of an interval that gets through, in seconds.
    ///
    /// `free` is the weight of all cases without cost, and `last` the weight of the last of them.
    /// The first of TCP's waits occurs `p` times as often as that, the second `p^2` times, and so
    /// on.
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

/// Duration in seconds in its shortest decimal form: 1.86, not 1.8599999999999999.
pub fn in_seconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e9
}
