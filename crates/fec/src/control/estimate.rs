use super::{Counts, history::binomial_likelihood};
use crate::theory::Channel;

/// Standard errors of a two-sided interval of 95 %.
const INTERVAL_ERRORS: f64 = 1.96;

/// More standard errors than anybody means.
const ERRORS_MAX: f64 = 1e3;

/// How sure it must be that losses come in bursts before they are taken to: the logarithm of the
/// likelihood ratio. Without bursts that is met in one of 400 cases.
const BURSTY: f64 = 4.0;

/// A measured value and the interval in which the true one lies with 95 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The most likely value.
    pub value: f64,
    /// The interval's lower end.
    pub low: f64,
    /// The interval's upper end.
    pub high: f64,
}

/// How a link loses packets, as far as can be said from [`Counts`].
///
/// Gilbert's chain is fitted: with `received` and `lost` packets in `bursts` bursts, a received packet
/// is followed by a lost one with `q = bursts / received`, a lost one by a received one with
/// `r = bursts / lost`. These are the most likely values, and as each is a share of independent
/// trials, Wilson's interval holds for it (Wilson: "Probable inference, the law of succession, and
/// statistical inference", JASA 22, 1927). Of the loss rate it holds too, if the number of
/// packets is corrected for their telling little new about each other in bursts: n of them weigh as
/// much as `n (1 - m) / (1 + m)` independent ones, with the memory `m = 1 - q - r`.
///
/// Unless losses in a row are significantly more frequent than by chance, they are taken to be
/// independent: one parameter less to be wrong about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    counts: Counts,
    bursty: bool,
}

impl Estimate {
    /// The estimate that these counts allow.
    #[must_use]
    pub fn new(counts: Counts) -> Self {
        let bursty = is_bursty(counts);
        Self { counts, bursty }
    }

    /// What the estimate rests on.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Whether losses come in bursts rather than independently.
    #[must_use]
    pub fn is_bursty(&self) -> bool {
        self.bursty
    }

    /// The share of packets that is lost.
    #[must_use]
    pub fn loss(&self) -> Measured {
        let value = self.counts.loss();
        Measured {
            value,
            low: self.loss_at(-INTERVAL_ERRORS).min(value),
            high: self.loss_at(INTERVAL_ERRORS).max(value),
        }
    }

    /// The mean number of packets lost in a row; `None` without losses.
    #[must_use]
    pub fn burst(&self) -> Option<Measured> {
        if self.counts.bursts() == 0 {
            return None;
        }
        let (bursts, lost) = (self.counts.bursts() as f64, self.counts.lost() as f64);
        let value = lost / bursts;
        Some(Measured {
            value,
            // No further than the value, if rounding says so.
            low: (1.0 / wilson(bursts, lost, INTERVAL_ERRORS)).min(value),
            high: (1.0 / wilson(bursts, lost, -INTERVAL_ERRORS)).max(value),
        })
    }

    /// The channel that fits best.
    #[must_use]
    pub fn channel(&self) -> Channel {
        self.channel_at(0.0)
    }

    /// The channel that is worse than the best fit by so many standard errors, or better if they
    /// are negative. In bursts, where two parameters are uncertain, each has its share of
    /// that: the root of one half. Beyond a thousand it is as at a thousand.
    #[must_use]
    pub fn channel_at(&self, errors: f64) -> Channel {
        let errors = if errors.is_nan() {
            0.0
        } else {
            errors.clamp(-ERRORS_MAX, ERRORS_MAX)
        };
        let (received, lost) = (self.counts.received() as f64, self.counts.lost() as f64);
        let bursts = self.counts.bursts() as f64;
        let channel = if self.bursty {
            let errors = errors * std::f64::consts::FRAC_1_SQRT_2;
            let to_bad = wilson(bursts, received, errors);
            let to_good = wilson(bursts, lost, -errors);
            Channel::gilbert_elliott(to_bad, to_good, 0.0, 1.0)
        } else {
            Channel::iid(self.loss_at(errors))
        };
        channel.expect("Wilson's bounds are probabilities, and in bursts none is zero")
    }

    pub(super) fn loss_at(&self, errors: f64) -> f64 {
        let weight = self.packets_effective() / self.counts.packets().max(1) as f64;
        wilson(
            self.counts.lost() as f64 * weight,
            self.packets_effective(),
            errors,
        )
    }

    /// As many independent packets would say as much about the loss rate.
    fn packets_effective(&self) -> f64 {
        let packets = self.counts.packets() as f64;
        let memory = if self.bursty {
            // Not `channel().memory()`, which asks for this.
            let bursts = self.counts.bursts() as f64;
            1.0 - bursts / self.counts.received() as f64 - bursts / self.counts.lost() as f64
        } else {
            0.0
        };
        packets * (1.0 - memory) / (1.0 + memory)
    }
}

/// Whether a packet is lost after a lost one significantly more often than after a received one.
fn is_bursty(counts: Counts) -> bool {
    let (received, lost) = (counts.received() as f64, counts.lost() as f64);
    let bursts = counts.bursts() as f64;
    if counts.bursts() < 2 || bursts >= received {
        return false;
    }
    let further = lost - bursts;
    let apart = binomial_likelihood(bursts, received) + binomial_likelihood(further, lost);
    let together = binomial_likelihood(lost, received + lost);
    further / lost > bursts / received && apart - together > BURSTY
}

/// The end of Wilson's interval for the probability of what happened `count` times of `trials`, so
/// many standard errors above the observed share, or below.
fn wilson(count: f64, trials: f64, errors: f64) -> f64 {
    if trials <= 0.0 {
        return if errors > 0.0 { 1.0 } else { 0.0 };
    }
    let (share, square) = (count / trials, errors * errors);
    let centre = share + square / (2.0 * trials);
    let spread = (share * (1.0 - share) / trials + square / (4.0 * trials * trials)).sqrt();
    ((centre + errors * spread) / (1.0 + square / trials)).clamp(0.0, 1.0)
}
