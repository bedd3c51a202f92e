use super::Draws;

/// How a link loses packets: as a Markov chain with a good and a bad state, and a probability of
/// loss in each (Gilbert: "Capacity of a burst-noise channel", Bell System Technical Journal 39,
/// 1960; with losses in the good state too, Elliott: "Estimates of error rates for codes on
/// burst-noise channels", 42, 1963).
///
/// ```text
///                 q
///          +-------------->
///    1-q (good)          (bad) 1-r
///          <--------------+
///     lost: g      r        lost: b
/// ```
///
/// The state changes once a packet. A link on which packets are lost independently of each other
/// is the special case that never is in the bad state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Channel {
    to_bad: f64,
    to_good: f64,
    loss_good: f64,
    loss_bad: f64,
}

/// Why numbers make no [`Channel`].
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ChannelError {
    /// A probability lies between 0 and 1.
    #[error("{name} {value} is not between 0 and 1")]
    Probability {
        /// What it is the probability of.
        name: &'static str,
        /// The value given.
        value: f64,
    },
    /// With neither transition possible there is no stationary state to speak of.
    #[error("a channel that never changes its state")]
    Frozen,
    /// Bursts have at least one packet, and the good packets between two of them too: the mean
    /// burst is at least `p / (1 - p)`, and finite.
    #[error("bursts of {burst} packets cannot make a loss rate of {loss}")]
    Burst {
        /// The mean loss rate given.
        loss: f64,
        /// The mean length of bursts given.
        burst: f64,
    },
}

impl Channel {
    /// The wireless channel of paul2006: a good state that lasts with 0.9913, a bad state that
    /// lasts with 0.8509 and loses everything; 5.5 % of packets are lost, in bursts of 6.7.
    pub const PAUL2006: Self = Self {
        to_bad: 1.0 - 0.9913,
        to_good: 1.0 - 0.8509,
        loss_good: 0.0,
        loss_bad: 1.0,
    };

    /// Packets are lost independently of each other, with probability `loss`.
    ///
    /// # Errors
    ///
    /// If that is no probability.
    pub fn iid(loss: f64) -> Result<Self, ChannelError> {
        Self::gilbert_elliott(0.0, 1.0, loss, loss)
    }

    /// Gilbert's channel, on which a packet is lost if and only if the state is bad, by what can be
    /// observed: a share `loss` of packets is lost, in bursts of `burst` packets on average. Then
    /// `r = 1 / burst` and `q = r loss / (1 - loss)`.
    ///
    /// # Errors
    ///
    /// If `loss` is no probability or 1, if `burst` is below 1 or too short for such a loss.
    pub fn gilbert(loss: f64, burst: f64) -> Result<Self, ChannelError> {
        probability("loss", loss)?;
        let to_bad = loss / ((1.0 - loss) * burst);
        if !(burst >= 1.0 && burst.is_finite() && to_bad <= 1.0) {
            return Err(ChannelError::Burst { loss, burst });
        }
        Self::gilbert_elliott(to_bad, 1.0 / burst, 0.0, 1.0)
    }

    /// The channel that goes from good to bad with probability `to_bad` after each packet, back
    /// with `to_good`, and loses packets with `loss_good` and `loss_bad`.
    ///
    /// # Errors
    ///
    /// If one of these is no probability, or both transitions are impossible.
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

    /// The share of packets that is lost: `g r / (q + r) + b q / (q + r)`.
    #[must_use]
    pub fn loss(&self) -> f64 {
        let [good, bad] = self.stationary();
        good * self.loss_good + bad * self.loss_bad
    }

    /// The mean number of packets that are lost in a row: the share that is lost, over the share
    /// that is the first one of a burst. Zero if nothing is ever lost, infinite if everything is.
    ///
    /// With independent losses this is `1 / (1 - p)`, with Gilbert's channel `1 / r`.
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

    /// How much the state of one packet says about the next one's: `1 - q - r`, from -1 to 1, zero
    /// if nothing.
    #[must_use]
    pub fn memory(&self) -> f64 {
        1.0 - self.to_bad - self.to_good
    }

    /// The least overcode, as a share of data, with which any code can restore all: `p / (1 - p)`.
    #[must_use]
    pub fn capacity_overhead(&self) -> f64 {
        let loss = self.loss();
        loss / (1.0 - loss)
    }

    /// Losses drawn at random, the same ones with the same seed: `true` for a packet that is lost.
    #[must_use]
    pub fn draws(&self, seed: u64) -> Draws {
        Draws::new(self, seed)
    }

    /// How often the state is good, and bad.
    pub(super) fn stationary(&self) -> [f64; 2] {
        let sum = self.to_bad + self.to_good;
        [self.to_good / sum, self.to_bad / sum]
    }

    /// The probability of loss in the good and in the bad state.
    pub(super) fn loss_by_state(&self) -> [f64; 2] {
        [self.loss_good, self.loss_bad]
    }

    /// From state (row) to state (column) in `packets` steps. With the memory m and the stationary
    /// share s of the column's state it is `s + (1 - s) m^packets` on the diagonal, and
    /// `s (1 - m^packets)` beside it.
    pub(super) fn transition(&self, packets: usize) -> [[f64; 2]; 2] {
        let [good, bad] = self.stationary();
        let (rest, gone) = powers(self.to_bad + self.to_good, packets);
        [
            [good + bad * rest, bad * gone],
            [good * gone, bad + good * rest],
        ]
    }
}

/// `(1 - change)^steps` and one minus that, without loss of digits where `change` is small.
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
