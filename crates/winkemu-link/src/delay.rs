//! Delay and jitter.

use super::{
    Direction, Nanos,
    config::{DelayConfig, DelayModel, Jitter, JitterShape, nanos},
    random::{Model, Stream},
};

/// Delay of one direction.
#[derive(Debug)]
pub(crate) struct Delay {
    base: DelayModel,
    jitter: Jitter,
    draws: Stream,
}

impl Delay {
    pub(crate) fn new(config: &DelayConfig, seed: u64, link: u64, direction: Direction) -> Self {
        Self {
            base: config.base.clone(),
            jitter: config.jitter,
            draws: Stream::of_direction(seed, link, direction, Model::Jitter),
        }
    }

    /// Delay, without jitter, of a packet sent at `now`.
    pub(crate) fn base(&self, now: Nanos) -> Nanos {
        match &self.base {
            DelayModel::Fixed(delay) => nanos(*delay),
            DelayModel::Trace(trace) => trace.at(now).0,
        }
    }

    /// Minimum delay of any packet.
    pub(crate) fn minimum(&self) -> Nanos {
        match &self.base {
            DelayModel::Fixed(delay) => nanos(*delay),
            DelayModel::Trace(trace) => trace.steps().iter().map(|s| s.1).min().unwrap_or(0),
        }
    }

    /// Extra delay of packet `index`.
    pub(crate) fn jitter(&self, index: u64) -> Nanos {
        let size = nanos(self.jitter.size) as f64;
        if size == 0.0 {
            return 0;
        }
        let jitter = match self.jitter.shape {
            JitterShape::Uniform => self.draws.unit(index) * size,
            JitterShape::Exponential => self.draws.exponential(index, size),
        };
        jitter as Nanos
    }
}
