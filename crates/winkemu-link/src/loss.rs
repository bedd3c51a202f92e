//! Loss on the link itself. Every decision depends on a packet's index, not on its time.

use std::sync::Arc;

use super::{
    Direction,
    config::{Gilbert, LossConfig},
    random::{Model, Stream},
    stats::Cause,
};

/// Loss models of one direction. A packet is lost when any of them loses it.
#[derive(Debug)]
pub(crate) struct Loss {
    packet_loss: f64,
    packet_draws: Stream,
    /// ln(1 - BER), 0 or less.
    ln_bit_intact: f64,
    bit_draws: Stream,
    burst: Option<Burst>,
    trace: Option<Arc<[bool]>>,
}

impl Loss {
    pub(crate) fn new(config: &LossConfig, seed: u64, link: u64, direction: Direction) -> Self {
        let stream = |model| Stream::of_direction(seed, link, direction, model);
        Self {
            packet_loss: config.packet.get(),
            packet_draws: stream(Model::PacketLoss),
            ln_bit_intact: libm::log1p(-config.bit_errors.get()),
            bit_draws: stream(Model::BitErrors),
            burst: config.burst.map(|gilbert| Burst {
                gilbert,
                bad: false,
                stepped: 0,
                states: stream(Model::BurstState),
                losses: stream(Model::BurstLoss),
            }),
            trace: config.trace.clone(),
        }
    }

    /// Cause of the loss of packet `index` with `bytes` on the wire; `None` if it survives. Indices
    /// must not decrease.
    pub(crate) fn verdict(&mut self, index: u64, bytes: u64) -> Option<Cause> {
        // Step the burst state always, so that another model's verdict does not skip it.
        let burst = self.burst.as_mut().is_some_and(|burst| burst.loses(index));
        if self.packet_draws.happens(index, self.packet_loss) {
            return Some(Cause::PacketLoss);
        }
        if self.ln_bit_intact < 0.0 && self.bit_draws.happens(index, self.bit_error_ratio(bytes)) {
            return Some(Cause::BitErrors);
        }
        if burst {
            return Some(Cause::BurstLoss);
        }
        let trace = self.trace.as_ref()?;
        trace[(index % trace.len() as u64) as usize].then_some(Cause::LossTrace)
    }

    /// `1 - (1 - BER)^(8 len)`, exact for small ratios.
    fn bit_error_ratio(&self, bytes: u64) -> f64 {
        -libm::expm1(8.0 * bytes as f64 * self.ln_bit_intact)
    }
}

/// Gilbert-Elliott chain of two states, with one step per offered packet.
#[derive(Debug)]
struct Burst {
    gilbert: Gilbert,
    bad: bool,
    /// Steps made: the state is the one of packet `stepped - 1`.
    stepped: u64,
    states: Stream,
    losses: Stream,
}

impl Burst {
    fn loses(&mut self, index: u64) -> bool {
        while self.stepped <= index {
            self.step();
        }
        let loss = if self.bad {
            self.gilbert.loss_bad
        } else {
            self.gilbert.loss_good
        };
        self.losses.happens(index, loss.get())
    }

    /// Advances the chain. The first state comes from the stationary distribution, so that short
    /// runs are not biased towards the good one.
    fn step(&mut self) {
        let (p, q) = (self.gilbert.to_bad.get(), self.gilbert.to_good.get());
        let to_bad = match (self.stepped, self.bad) {
            (0, _) => self.gilbert.share_bad(),
            (_, true) => 1.0 - q,
            (_, false) => p,
        };
        self.bad = self.states.happens(self.stepped, to_bad);
        self.stepped += 1;
    }
}
