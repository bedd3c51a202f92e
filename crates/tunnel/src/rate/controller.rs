//! The rate, whoever knows it.

use std::time::Duration;

use super::auto::Auto;
use crate::{cause::LossEvent, path::PathSample, rate::Rate};

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

/// The truth of a stated rate, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Unknown: it has not been used up.
    Unused,
    /// All of it has been used, and no queue stood: the link carries that or more.
    Carried,
    /// The link carries less, and has for a while.
    Less,
    /// Others fill the link, and we have a share of it.
    Shared,
}

/// Says how fast to send. Rates are bits a second on the link, all that is on it counted.
#[derive(Clone, Debug)]
pub enum Controller {
    /// The link is ours alone: nothing changes its rate.
    Dedicated {
        /// It.
        rate: u64,
    },
    /// The rate is measured, below the stated one if there is one.
    Measured(Box<Auto>),
}

impl Controller {
    /// A controller that begins at `now`.
    pub fn new(config: &ControllerConfig, now: Duration) -> Self {
        match config.rate {
            Rate::Dedicated(rate) => Self::Dedicated { rate: rate.max(1) },
            Rate::Stated(_) | Rate::Auto => Self::Measured(Box::new(Auto::new(config, now))),
        }
    }

    /// Rate at which to send now, in bits a second; never 0, and `u64::MAX` while the first packets
    /// leave without pacing. May change after each of the calls below.
    pub fn rate(&self) -> u64 {
        match self {
            Self::Dedicated { rate } => *rate,
            Self::Measured(auto) => auto.rate(),
        }
    }

    /// What the link is thought to carry for us, in bits a second: without the ups and downs by
    /// which it is found out. For windows, for spacings, and to be remembered.
    pub fn link_rate(&self) -> u64 {
        match self {
            Self::Dedicated { rate } => *rate,
            Self::Measured(auto) => auto.link_rate(),
        }
    }

    /// The truth of the stated rate; nothing where none is stated, or none is measured.
    pub fn found(&self) -> Option<Found> {
        match self {
            Self::Dedicated { .. } => None,
            Self::Measured(auto) => auto.found(),
        }
    }

    /// The rate with which reports and beacons may reckon, in bits a second: these go whatever the
    /// pacing. The peer reckons with a stated rate, too.
    pub fn safe_rate(&self) -> u64 {
        match self {
            Self::Dedicated { rate } => *rate,
            Self::Measured(auto) => auto.safe_rate(),
        }
    }

    /// A packet has been sent that takes so many bytes on the link.
    pub fn on_sent(&mut self, now: Duration, _bytes: u64) {
        if let Self::Measured(auto) = self {
            auto.on_sent(now);
        }
    }

    /// A report has come. `losses` are what was found lost since the last call.
    pub fn on_sample(&mut self, sample: &PathSample, losses: &[LossEvent]) {
        if let Self::Measured(auto) = self {
            auto.on_sample(sample, losses);
        }
    }

    /// Nothing comes from the peer any more.
    pub fn on_outage(&mut self, now: Duration) {
        if let Self::Measured(auto) = self {
            auto.on_outage(now);
        }
    }

    /// The peer is there again: at the remembered rate, and as attentive to queues as ever.
    pub fn on_resume(&mut self, now: Duration) {
        if let Self::Measured(auto) = self {
            auto.on_resume(now);
        }
    }
}
