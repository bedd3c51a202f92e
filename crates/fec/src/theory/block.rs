use super::Channel;
use crate::code::SYMBOLS_MAX;

/// Failure probabilities of a block on a channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockOdds {
    /// Probability that more packets of a block are lost than it has rows.
    pub failure: f64,
    /// Share of data packets that are lost and cannot be restored. With independent losses and n =
    /// k + h it is `sum over i > h of C(n, i) p^i (1 - p)^(n - i) i / n`.
    pub residual: f64,
}

/// Reason why a block is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// Invalid size: a block has 1 data packet or more, and 256 packets at most.
    #[error("no block has {k} data packets and {h} rows")]
    Size {
        /// Number of data packets given.
        k: usize,
        /// Number of rows given.
        h: usize,
    },
    /// Invalid depth: packets of one block are one packet apart, or more.
    #[error("interleaving of depth 0")]
    Depth,
}

impl Channel {
    /// Returns the failure probabilities of a block of `k` data packets and `h` rows. Its packets
    /// are sent in this order, `depth` packets apart: 1 without interleaving, else the number of
    /// interleaved blocks.
    ///
    /// Exact for every channel. In bursts, data packets and rows are not equally often among the
    /// losses of a failing block, so the losses of data are tracked along with those of the block.
    /// All sums are of positive terms, so that very small probabilities are as precise as large
    /// ones. It takes `2 n^2` steps for n packets.
    ///
    /// # Errors
    ///
    /// If no block has this size, or `depth` is zero.
    pub fn block(&self, k: usize, h: usize, depth: usize) -> Result<BlockOdds, BlockError> {
        if k == 0 || k.saturating_add(h) > SYMBOLS_MAX {
            return Err(BlockError::Size { k, h });
        }
        if depth == 0 {
            return Err(BlockError::Depth);
        }
        let mut walk = Walk::new(self, depth);
        for packet in 0..k + h {
            walk.step_with_data(packet < k);
        }
        Ok(BlockOdds {
            failure: walk.tail(h),
            residual: walk.data_tail(h) / k as f64,
        })
    }
}

/// Probabilities by state and number of losses.
type ByLosses = [[f64; SYMBOLS_MAX + 1]; 2];

/// Distribution of the number of losses among the first n packets of a block, for one n after the
/// other.
pub(super) struct Walk {
    transition: [[f64; 2]; 2],
    loss: [f64; 2],
    packets: usize,
    /// `odds[s][i]`: probability that i packets were lost and the next one meets state s.
    odds: ByLosses,
    /// The probability times the mean number of lost data packets in that case.
    data: ByLosses,
}

impl Walk {
    pub(super) fn new(channel: &Channel, depth: usize) -> Self {
        let mut odds = [[0.0; SYMBOLS_MAX + 1]; 2];
        [odds[0][0], odds[1][0]] = channel.stationary();
        Self {
            transition: channel.transition(depth),
            loss: channel.loss_by_state(),
            packets: 0,
            odds,
            data: [[0.0; SYMBOLS_MAX + 1]; 2],
        }
    }

    /// Adds a packet.
    pub(super) fn step(&mut self) {
        self.packets += 1;
        let (loss, transition) = (self.loss, self.transition);
        let [good, bad] = &mut self.odds;
        for i in (1..=self.packets).rev() {
            let met = [
                good[i] * (1.0 - loss[0]) + good[i - 1] * loss[0],
                bad[i] * (1.0 - loss[1]) + bad[i - 1] * loss[1],
            ];
            [good[i], bad[i]] = next(met, transition);
        }
        let met = [good[0] * (1.0 - loss[0]), bad[0] * (1.0 - loss[1])];
        [good[0], bad[0]] = next(met, transition);
    }

    /// Adds a packet and the losses of data; `is_data` is true for a data packet.
    fn step_with_data(&mut self, is_data: bool) {
        let (loss, transition) = (self.loss, self.transition);
        let one = if is_data { 1.0 } else { 0.0 };
        for i in (0..=self.packets + 1).rev() {
            let met = [0, 1].map(|s| {
                let kept = self.data[s][i] * (1.0 - loss[s]);
                let Some(fewer) = i.checked_sub(1) else {
                    return kept;
                };
                kept + (self.data[s][fewer] + one * self.odds[s][fewer]) * loss[s]
            });
            [self.data[0][i], self.data[1][i]] = next(met, transition);
        }
        self.step();
    }

    /// Probability of exactly `losses`.
    pub(super) fn exactly(&self, losses: usize) -> f64 {
        self.odds[0][losses] + self.odds[1][losses]
    }

    /// Probability of more than `losses`.
    pub(super) fn tail(&self, losses: usize) -> f64 {
        sum_from(&self.odds, losses + 1, self.packets)
    }

    /// Mean number of data packets lost in blocks with more than `losses`; other blocks count as
    /// none.
    fn data_tail(&self, losses: usize) -> f64 {
        sum_from(&self.data, losses + 1, self.packets)
    }
}

/// Advances the values per state to the state of the next packet.
fn next(met: [f64; 2], transition: [[f64; 2]; 2]) -> [f64; 2] {
    [0, 1].map(|to| met[0] * transition[0][to] + met[1] * transition[1][to])
}

/// Adds small terms first.
fn sum_from(odds: &ByLosses, first: usize, last: usize) -> f64 {
    (first..=last).rev().map(|i| odds[0][i] + odds[1][i]).sum()
}
