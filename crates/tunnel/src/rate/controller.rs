//! Rate controller: dedicated or measured.

use std::time::Duration;

use super::auto::Auto;
use crate::{cause::LossEvent, path::PathSample, rate::Rate};

/// Initial parameters of a controller.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ControllerConfig {
    /// Rate statement.
    pub rate: Rate,
    /// Initial round trip time.
    pub rtt: Duration,
    /// Usual packet, in bytes on the link.
    pub packet: u64,
    /// Bytes per datagram on the link beyond those that [`PathSample::bytes`] counts.
    pub overhead: u64,
    /// Remembered rate to begin with, in bits per second, if it can be trusted.
    pub remembered: Option<u64>,
}

/// Result of checking a stated rate against measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Unknown: the stated rate has not been fully used yet.
    Unused,
    /// Fully used without a standing queue: the link carries the stated rate or more.
    Carried,
    /// The link carries less, and has for a while.
    Less,
    /// Other traffic fills the link, and the session has a share of it.
    Shared,
}

/// Controller of the sending rate. Rates are in bits per second on the link, all overhead included.
#[derive(Clone, Debug)]
pub enum Controller {
    /// Fixed rate: no other traffic shares the link.
    Dedicated {
        /// Fixed rate in bits per second.
        rate: u64,
    },
    /// Measured rate, capped at the stated one if there is one.
    Measured(Box<Auto>),
}

impl Controller {
    /// Creates a controller that begins at `now`.
    pub fn new(config: &ControllerConfig, now: Duration) -> Self {
        match config.rate {
            Rate::Dedicated(rate) => Self::Dedicated { rate: rate.max(1) },
            Rate::Stated(_) | Rate::Auto => Self::Measured(Box::new(Auto::new(config, now))),
        }
    }

    /// Returns the current sending rate in bits per second; never 0, and `u64::MAX` while the first
    /// packets leave without pacing. May change after each of the calls below.
    pub fn rate(&self) -> u64 {
        match self {
            Self::Dedicated { rate } => *rate,
            Self::Measured(auto) => auto.rate(),
        }
    }

    /// Returns the estimated capacity for this session in bits per second, without the variations
    /// of probing. For windows, report spacings, and the path memory.
    pub fn link_rate(&self) -> u64 {
        match self {
            Self::Dedicated { rate } => *rate,
            Self::Measured(auto) => auto.link_rate(),
        }
    }

    /// Returns the check of the stated rate; `None` if none is stated or none is measured.
    pub fn found(&self) -> Option<Found> {
        match self {
            Self::Dedicated { .. } => None,
            Self::Measured(auto) => auto.found(),
        }
    }

    /// Returns the rate in bits per second on which reports and beacons are based, as they bypass
    /// pacing. The peer uses a stated rate, too.
    pub fn safe_rate(&self) -> u64 {
        match self {
            Self::Dedicated { rate } => *rate,
            Self::Measured(auto) => auto.safe_rate(),
        }
    }

    /// Returns true while packets leave whose arrivals measure the rate: first train or pulse.
    pub fn is_in_burst(&self) -> bool {
        match self {
            Self::Dedicated { .. } => false,
            Self::Measured(auto) => auto.is_in_burst(),
        }
    }

    /// Records that a packet of this many bytes on the link is sent.
    pub fn on_sent(&mut self, now: Duration, _bytes: u64) {
        if let Self::Measured(auto) = self {
            auto.on_sent(now);
        }
    }

    /// Handles a report. `losses` are the losses found since the last call.
    pub fn on_sample(&mut self, sample: &PathSample, losses: &[LossEvent]) {
        if let Self::Measured(auto) = self {
            auto.on_sample(sample, losses);
        }
    }

    /// Handles an outage: nothing arrives from the peer.
    pub fn on_outage(&mut self, now: Duration) {
        if let Self::Measured(auto) = self {
            auto.on_outage(now);
        }
    }

    /// Handles the end of an outage: resumes at the remembered rate, and reacts to queues as
    /// before.
    pub fn on_resume(&mut self, now: Duration) {
        if let Self::Measured(auto) = self {
            auto.on_resume(now);
        }
    }
}
