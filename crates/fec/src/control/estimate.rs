use super::{Counts, history::binomial_likelihood};
use crate::theory::Channel;

/// Standard errors of a two-sided interval of 95 %.
const INTERVAL_ERRORS: f64 = 1.96;

/// Upper bound of the standard errors accepted.
const ERRORS_MAX: f64 = 1e3;

/// Certainty required before losses count as bursty: the logarithm of the likelihood ratio. Without
/// bursts one of 400 cases reaches it.
const BURSTY: f64 = 4.0;

/// A measured value and its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Most likely value.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// Loss characteristics of a link, estimated from [`Counts`].
///
/// Fits Gilbert's chain: with `received` and `lost` packets in `bursts` bursts, a received packet
/// is followed by a lost one with `q = bursts / received`, a lost one by a received one with `r =
/// bursts / lost`. These are the most likely values. As each is a share of independent trials,
/// Wilson's interval holds for it (Wilson: "Probable inference, the law of succession, and
/// statistical inference", JASA 22, 1927). It holds for the loss rate too, after a correction of
/// the number of packets for their correlation in bursts: n packets weigh as much as `n (1 - m) /
/// (1 + m)` independent ones, with the memory `m = 1 - q - r`.
///
/// Losses count as independent, which has one parameter fewer, unless consecutive losses are
/// significantly more frequent than by chance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    counts: Counts,
    bursty: bool,
}

impl Estimate {
    /// Returns the estimate from these counts.
    #[must_use]
    pub fn new(counts: Counts) -> Self {
        let bursty = is_bursty(counts);
        Self { counts, bursty }
    }

    /// Counts behind the estimate.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Reports whether losses are bursty rather than independent.
    #[must_use]
    pub fn is_bursty(&self) -> bool {
        self.bursty
    }

    /// Share of packets lost.
    #[must_use]
    pub fn loss(&self) -> Measured {
        let value = self.counts.loss();
        Measured {
            value,
            low: self.loss_at(-INTERVAL_ERRORS).min(value),
            high: self.loss_at(INTERVAL_ERRORS).max(value),
        }
    }

    /// Mean number of packets lost in a row; `None` without losses.
    #[must_use]
    pub fn burst(&self) -> Option<Measured> {
        if self.counts.bursts() == 0 {
            return None;
        }
        let (bursts, lost) = (self.counts.bursts() as f64, self.counts.lost() as f64);
        let value = lost / bursts;
        Some(Measured {
            value,
            // Never beyond the value by rounding.
            low: (1.0 / wilson(bursts, lost, INTERVAL_ERRORS)).min(value),
            high: (1.0 / wilson(bursts, lost, -INTERVAL_ERRORS)).max(value),
        })
    }

    /// Best fitting channel.
    #[must_use]
    pub fn channel(&self) -> Channel {
        self.channel_at(0.0)
    }

    /// Returns the channel that is worse than the best fit by `errors` standard errors, or better
    /// if they are negative. With bursts, two parameters are uncertain, and each takes its share of
    /// the errors: the root of one half. Limited to a thousand.
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

    /// Number of independent packets with the same information about the loss rate.
    fn packets_effective(&self) -> f64 {
        let packets = self.counts.packets() as f64;
        let memory = if self.bursty {
            // Not `channel().memory()`, which calls this function.
            let bursts = self.counts.bursts() as f64;
            1.0 - bursts / self.counts.received() as f64 - bursts / self.counts.lost() as f64
        } else {
            0.0
        };
        packets * (1.0 - memory) / (1.0 + memory)
    }
}

/// Reports whether losses follow lost packets significantly more often than received ones.
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

/// Returns the end of Wilson's interval for the probability of an event that happened `count` times
/// in `trials`, this many standard errors above the observed share, or below.
fn wilson(count: f64, trials: f64, errors: f64) -> f64 {
    if trials <= 0.0 {
        return if errors > 0.0 { 1.0 } else { 0.0 };
    }
    let (share, square) = (count / trials, errors * errors);
    let centre = share + square / (2.0 * trials);
    let spread = (share * (1.0 - share) / trials + square / (4.0 * trials * trials)).sqrt();
    ((centre + errors * spread) / (1.0 + square / trials)).clamp(0.0, 1.0)
}
