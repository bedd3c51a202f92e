use splitmix::mix;

use super::Channel;

/// Losses of a [`Channel`], one for each packet, from a seed: an endless iterator, `true` for a
/// lost packet. It starts in a state drawn from the stationary ones.
///
/// ```
/// use fec::theory::Channel;
///
/// let lost = Channel::iid(0.1)?.draws(1).take(10_000).filter(|&lost| lost).count();
/// assert!((900..1100).contains(&lost));
/// # Ok::<(), fec::theory::ChannelError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Draws {
    /// Probability of the bad state next, by state.
    to_bad: [f64; 2],
    loss: [f64; 2],
    state: usize,
    seed: u64,
    drawn: u64,
}

impl Draws {
    pub(super) fn new(channel: &Channel, seed: u64) -> Self {
        let [good, bad] = channel.transition(1);
        let mut draws = Self {
            to_bad: [good[1], bad[1]],
            loss: channel.loss_by_state(),
            state: 0,
            seed,
            drawn: 0,
        };
        draws.state = draws.happens(channel.stationary()[1]).into();
        draws
    }

    /// Continues with another channel, in the current state, to simulate a change of the link.
    #[must_use]
    pub fn change(self, channel: &Channel) -> Self {
        let [good, bad] = channel.transition(1);
        Self {
            to_bad: [good[1], bad[1]],
            loss: channel.loss_by_state(),
            ..self
        }
    }

    fn happens(&mut self, probability: f64) -> bool {
        self.drawn += 1;
        let bits = mix(mix(self.seed) ^ self.drawn);
        ((bits >> 11) as f64) < probability * (1u64 << 53) as f64
    }
}

impl Iterator for Draws {
    type Item = bool;

    fn next(&mut self) -> Option<bool> {
        let lost = self.happens(self.loss[self.state]);
        self.state = self.happens(self.to_bad[self.state]).into();
        Some(lost)
    }
}
