use super::Draws;

/// Loss model of a link: a Markov chain with a good and a bad state, and a probability of loss in
/// each. See Gilbert: "Capacity of a burst-noise channel", Bell System Technical Journal 39, 1960;
/// with losses in the good state too, Elliott: "Estimates of error rates for codes on burst-noise
/// channels", 42, 1963.
///
/// ```text
///                 q
///          +-------------->
///    1-q (good)          (bad) 1-r
///          <--------------+
///     lost: g      r        lost: b
/// ```
///
/// The state changes once per packet. A link with independent losses is the special case that never
/// is in the bad state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Channel {
    to_bad: f64,
    to_good: f64,
    loss_good: f64,
    loss_bad: f64,
}

/// Reason why numbers are not a valid [`Channel`].
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ChannelError {
    /// Not a probability, between 0 and 1.
    #[error("{name} {value} is not between 0 and 1")]
    Probability {
        /// Name of the probability.
        name: &'static str,
        /// Value given.
        value: f64,
    },
    /// With neither transition possible there is no unique stationary state.
    #[error("a channel that never changes its state")]
    Frozen,
    /// Impossible burst length: bursts, and the runs of good packets between them, have one packet
    /// or more. So the mean burst is `p / (1 - p)` or longer, and finite.
    #[error("bursts of {burst} packets cannot make a loss rate of {loss}")]
    Burst {
        /// Mean loss rate given.
        loss: f64,
        /// Mean burst length given.
        burst: f64,
    },
}

impl Channel {
    /// Wireless channel of paul2006: a good state that lasts with 0.9913, a bad state that lasts
    /// with 0.8509 and loses everything; 5.5 % of packets are lost, in bursts of 6.7.
    pub const PAUL2006: Self = Self {
        to_bad: 1.0 - 0.9913,
        to_good: 1.0 - 0.8509,
        loss_good: 0.0,
        loss_bad: 1.0,
    };

    /// Returns a channel that loses packets independently, with probability `loss`.
    ///
    /// # Errors
    ///
    /// If that is not a probability.
    pub fn iid(loss: f64) -> Result<Self, ChannelError> {
        Self::gilbert_elliott(0.0, 1.0, loss, loss)
    }

    /// Returns Gilbert's channel, which loses a packet if and only if the state is bad, from its
    /// observable properties: a share `loss` of packets is lost, in bursts of `burst` packets on
    /// average. Then `r = 1 / burst` and `q = r loss / (1 - loss)`.
    ///
    /// # Errors
    ///
    /// If `loss` is not a probability or 1, if `burst` is below 1 or too short for such a loss.
    pub fn gilbert(loss: f64, burst: f64) -> Result<Self, ChannelError> {
        probability("loss", loss)?;
        let to_bad = loss / ((1.0 - loss) * burst);
        if !(burst >= 1.0 && burst.is_finite() && to_bad <= 1.0) {
            return Err(ChannelError::Burst { loss, burst });
        }
        Self::gilbert_elliott(to_bad, 1.0 / burst, 0.0, 1.0)
    }

    /// Returns the channel that goes from good to bad with probability `to_bad` after each packet,
    /// back with `to_good`, and loses packets with `loss_good` and `loss_bad`.
    ///
    /// # Errors
    ///
    /// If one of these is not a probability, or both transitions are impossible.
    pub fn gilbert_elliott(
        to_bad: f64,
        to_good: f64,
        loss_good: f64,
        loss_bad: f64,
    ) -> Result<Self, ChannelError> {
        probability("transition to bad", to_bad)?;
        probability("transition to good", to_good)?;
        probability("loss in the good state", loss_good)?;
        probability("loss in the bad state", loss_bad)?;
        if to_bad + to_good == 0.0 {
            return Err(ChannelError::Frozen);
        }
        Ok(Self {
            to_bad,
            to_good,
            loss_good,
            loss_bad,
        })
    }

    /// Share of packets lost: `g r / (q + r) + b q / (q + r)`.
    #[must_use]
    pub fn loss(&self) -> f64 {
        let [good, bad] = self.stationary();
        good * self.loss_good + bad * self.loss_bad
    }

    /// Mean number of packets lost in a row: the share of lost packets over the share of first
    /// packets of a burst. Zero if nothing is ever lost, infinite if everything is.
    ///
    /// With independent losses it is `1 / (1 - p)`, with Gilbert's channel `1 / r`.
    #[must_use]
    pub fn burst(&self) -> f64 {
        let loss = self.loss();
        if loss == 0.0 {
            return 0.0;
        }
        let (stationary, transition) = (self.stationary(), self.transition(1));
        let lost = self.loss_by_state();
        let first: f64 = [(0, 0), (0, 1), (1, 0), (1, 1)]
            .map(|(a, b)| stationary[a] * (1.0 - lost[a]) * transition[a][b] * lost[b])
            .iter()
            .sum();
        loss / first
    }

    /// Correlation between the states of a packet and the next one: `1 - q - r`, from -1 to 1, zero
    /// without any.
    #[must_use]
    pub fn memory(&self) -> f64 {
        1.0 - self.to_bad - self.to_good
    }

    /// Minimum FEC overhead, as a share of data, with which any code can restore all: `p / (1 -
    /// p)`.
    #[must_use]
    pub fn capacity_overhead(&self) -> f64 {
        let loss = self.loss();
        loss / (1.0 - loss)
    }

    /// Random losses, the same ones for the same seed: `true` for a lost packet.
    #[must_use]
    pub fn draws(&self, seed: u64) -> Draws {
        Draws::new(self, seed)
    }

    /// Probability of the good and of the bad state.
    pub(super) fn stationary(&self) -> [f64; 2] {
        let sum = self.to_bad + self.to_good;
        [self.to_good / sum, self.to_bad / sum]
    }

    /// Probability of loss in the good and in the bad state.
    pub(super) fn loss_by_state(&self) -> [f64; 2] {
        [self.loss_good, self.loss_bad]
    }

    /// Transition probabilities from state (row) to state (column) in `packets` steps. With the
    /// memory m and the stationary share s of the column's state it is `s + (1 - s) m^packets` on
    /// the diagonal, and `s (1 - m^packets)` beside it.
    pub(super) fn transition(&self, packets: usize) -> [[f64; 2]; 2] {
        let [good, bad] = self.stationary();
        let (rest, gone) = powers(self.to_bad + self.to_good, packets);
        [
            [good + bad * rest, bad * gone],
            [good * gone, bad + good * rest],
        ]
    }
}

/// Returns `(1 - change)^steps` and one minus that, without loss of digits where `change` is small.
fn powers(change: f64, steps: usize) -> (f64, f64) {
    let steps = steps as f64;
    if change < 1.0 {
        let log = steps * (-change).ln_1p();
        (log.exp(), -log.exp_m1())
    } else {
        let rest = (1.0 - change).powf(steps);
        (rest, 1.0 - rest)
    }
}

fn probability(name: &'static str, value: f64) -> Result<(), ChannelError> {
    if (0.0..=1.0).contains(&value) {
        Ok(())
    } else {
        Err(ChannelError::Probability { name, value })
    }
}
