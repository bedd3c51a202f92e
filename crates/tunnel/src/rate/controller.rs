//! The rate, whoever knows it.

use std::time::Duration;

use crate::{cause::LossEvent, path::PathSample, session::Rate};

/// What a controller is told at its beginning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ControllerConfig {
    /// Stated, or to be measured.
    pub rate: Rate,
    /// The round trip time to begin with.
    pub rtt: Duration,
    /// The usual packet, in bytes on the link.
    pub packet: u64,
    /// What the link carries for a datagram beyond the bytes that [`PathSample::bytes`] counts.
    pub overhead: u64,
    /// A rate to begin with, in bits a second, if one is remembered and to be trusted.
    pub remembered: Option<u64>,
}

/// Says how fast to send. Rates are bits a second on the link, all that is on it counted.
#[derive(Clone, Debug)]
pub enum Controller {
    /// The rate is stated: nothing changes it.
    Stated {
        /// It.
        rate: u64,
    },
}

impl Controller {
    /// A controller that begins at `now`.
    pub fn new(config: &ControllerConfig, _now: Duration) -> Self {
        match config.rate {
            Rate::Stated(rate) => Self::Stated { rate: rate.max(1) },
            Rate::Auto => Self::Stated {
                rate: config.remembered.unwrap_or(10_000_000).max(1),
            },
        }
    }

    /// How fast to send now, in bits a second; never 0. May change after each of the calls below.
    pub fn rate(&self) -> u64 {
        match self {
            Self::Stated { rate } => *rate,
        }
    }

    /// What the link is thought to carry for us, in bits a second: without the ups and downs by which it
    /// is found out. For windows, for spacings, and to be remembered.
    pub fn link_rate(&self) -> u64 {
        match self {
            Self::Stated { rate } => *rate,
        }
    }

    /// A packet has been sent that takes so many bytes on the link.
    pub fn on_sent(&mut self, _now: Duration, _bytes: u64) {}

    /// A report has come. `losses` are what was found lost since the last call.
    pub fn on_sample(&mut self, _sample: &PathSample, _losses: &[LossEvent]) {}

    /// Nothing comes from the peer any more.
    pub fn on_outage(&mut self, _now: Duration) {}

    /// The peer is there again: at the remembered rate, watched closely for a round trip.
    pub fn on_resume(&mut self, _now: Duration) {}
}
