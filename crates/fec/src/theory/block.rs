use super::Channel;
use crate::code::SYMBOLS_MAX;

/// How a block does on a channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockOdds {
    /// The probability that more packets of a block are lost than it has rows of overcode.
    pub failure: f64,
    /// The share of data packets that are lost and cannot be restored. With independent losses and
    /// n = k + h this is `sum over i > h of C(n, i) p^i (1 - p)^(n - i) i / n`.
    pub residual: f64,
}

/// Why there is no such block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// A block has at least one data packet, and 256 packets at most.
    #[error("no block has {k} data packets and {h} rows of overcode")]
    Size {
        /// The number of data packets given.
        k: usize,
        /// The number of rows of overcode given.
        h: usize,
    },
    /// Packets of one block are at least one packet apart.
    #[error("interleaving of depth 0")]
    Depth,
}

impl Channel {
    /// How a block of `k` data packets and `h` rows of overcode does. Its packets are sent in this
    /// order, `depth` packets apart: one without interleaving, the number of blocks that take turns
    /// with it.
    ///
    /// Exact for every channel: in bursts data packets and rows are not equally often
    /// among the losses of a failing block, so the losses of data are carried along with those of the
    /// block. All sums are of positive terms, so that what is very unlikely is as precise as what is
    /// not. It takes `2 n^2` steps for n packets.
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

/// The distribution of the number of losses among the first n packets of a block, for one n after
/// the other.
pub(super) struct Walk {
    transition: [[f64; 2]; 2],
    loss: [f64; 2],
    packets: usize,
    /// `odds[s][i]`: the probability that i packets were lost and the next one meets state s.
    odds: ByLosses,
    /// The same, times the mean number of lost data packets in that case.
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

    /// One packet more.
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

    /// One packet more, with the losses of data; it is a data packet or it is not.
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

    /// The probability of exactly `losses`.
    pub(super) fn exactly(&self, losses: usize) -> f64 {
        self.odds[0][losses] + self.odds[1][losses]
    }

    /// The probability of more than `losses`.
    pub(super) fn tail(&self, losses: usize) -> f64 {
        sum_from(&self.odds, losses + 1, self.packets)
    }

    /// The mean number of data packets lost in blocks with more than `losses`, others counted as
    /// none.
    fn data_tail(&self, losses: usize) -> f64 {
        sum_from(&self.data, losses + 1, self.packets)
    }
}

/// What is met in each state, moved on to the state of the next packet.
fn next(met: [f64; 2], transition: [[f64; 2]; 2]) -> [f64; 2] {
    [0, 1].map(|to| met[0] * transition[0][to] + met[1] * transition[1][to])
}

/// The small ones first.
fn sum_from(odds: &ByLosses, first: usize, last: usize) -> f64 {
    (first..=last).rev().map(|i| odds[0][i] + odds[1][i]).sum()
}
