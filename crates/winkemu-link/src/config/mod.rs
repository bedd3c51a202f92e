//! Checked configuration of a link. Every value has been validated on its own.
//!
//! [`LinkConfig`] is what the engine runs; [`super::LinkOptions`] is the text form of it.

mod outages;
mod text;
mod values;

use std::{sync::Arc, time::Duration};

use serde::Serialize;
use units::{Rate, Ratio};

pub use outages::{InFlight, OnOff, Outage, Periodic, Queued, Spans, Wink};
pub use text::ValueError;
pub use values::{Aqm, Gilbert, Jitter, JitterShape, QueueLimit};

use super::{Direction, Nanos, trace::Trace};

/// Duration in nanoseconds; saturates after 584 years.
pub fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(Nanos::MAX)
}

/// Transmission rate of a link.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RateModel {
    /// No limit: a packet leaves when it arrives.
    Unlimited,
    /// Constant rate.
    Fixed(Rate),
    /// Bit/s over time, from the start of the link; 0 stops transmission.
    Trace(Trace<u64>),
}

impl RateModel {
    /// Mean rate in bit/s; `None` without a limit.
    pub fn mean(&self) -> Option<Rate> {
        match self {
            Self::Unlimited => None,
            Self::Fixed(rate) => Some(*rate),
            Self::Trace(trace) => Rate::from_bits_per_second(trace.mean(|bits| bits as f64) as u64),
        }
    }
}

/// Queue ahead of the link.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct QueueConfig {
    /// Capacity of the queue.
    pub limit: QueueLimit,
    /// Choice of the packet to drop when the queue is full.
    pub aqm: Aqm,
}

/// Ten full-sized packets. A smaller queue cannot carry a TCP window over a link without delay.
const QUEUE_BYTES_MIN: u64 = 15_000;

impl QueueConfig {
    /// Limits in bytes and in packets.
    pub(crate) fn limits(&self, bandwidth_delay_product: u64) -> (u64, u64) {
        match self.limit {
            QueueLimit::Bytes(size) => (size.bytes(), u64::MAX),
            QueueLimit::Packets(count) => (u64::MAX, count),
            QueueLimit::BandwidthDelay(share) => {
                let bytes = (bandwidth_delay_product as f64 * share).ceil() as u64;
                (bytes.max(QUEUE_BYTES_MIN), u64::MAX)
            }
        }
    }
}

/// Delay without jitter.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DelayModel {
    /// Constant delay.
    Fixed(#[serde(with = "units::duration")] Duration),
    /// Nanoseconds over time, read when a packet's last bit is sent.
    Trace(Trace<Nanos>),
}

impl Default for DelayModel {
    fn default() -> Self {
        Self::Fixed(Duration::ZERO)
    }
}

impl DelayModel {
    /// Constant delay, or the mean over the trace.
    pub fn mean(&self) -> Duration {
        match self {
            Self::Fixed(delay) => *delay,
            Self::Trace(trace) => Duration::from_nanos(trace.mean(|ns| ns as f64) as u64),
        }
    }
}

/// Propagation delay of one direction.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct DelayConfig {
    /// Delay without jitter.
    pub base: DelayModel,
    /// Random delay added to `base`.
    pub jitter: Jitter,
    /// True if packets may overtake each other. Otherwise a packet waits for those before it.
    pub reorder: bool,
}

/// Loss on the link. A packet is lost when any of the models loses it.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct LossConfig {
    /// Packet error ratio, independent of the packet's size.
    pub packet: Ratio,
    /// Bit error ratio: a packet of n bytes on the wire is lost with `1 - (1 - BER)^(8 n)`.
    pub bit_errors: Ratio,
    /// Loss in bursts.
    pub burst: Option<Gilbert>,
    /// Packet k is lost where entry k is true; the trace repeats.
    #[serde(skip)]
    pub trace: Option<Arc<[bool]>>,
}

/// One direction of a link.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PathConfig {
    /// Transmission rate.
    pub rate: RateModel,
    /// Bytes added to each packet on the wire; 1000 or less.
    pub overhead_bytes: u16,
    /// Queue of packets that wait for transmission.
    pub queue: QueueConfig,
    /// Outage schedules. An outage listed in both directions is down at the same times in both.
    pub outages: Vec<Outage>,
    /// Treatment of waiting packets during an outage.
    pub queued: Queued,
    /// Treatment of packets in flight during an outage.
    pub in_flight: InFlight,
    /// Loss models.
    pub loss: LossConfig,
    /// Delay and jitter.
    pub delay: DelayConfig,
    /// Share of packets delivered twice.
    pub duplicate: Ratio,
    /// Share of packets with one bit flipped.
    pub corrupt: Ratio,
}

impl Default for PathConfig {
    /// Wire without limit, delay or loss.
    fn default() -> Self {
        Self {
            rate: RateModel::Unlimited,
            overhead_bytes: 0,
            queue: QueueConfig::default(),
            outages: Vec::new(),
            queued: Queued::default(),
            in_flight: InFlight::default(),
            loss: LossConfig::default(),
            delay: DelayConfig::default(),
            duplicate: Ratio::default(),
            corrupt: Ratio::default(),
        }
    }
}

/// Link of two directions, independent except for outages.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct LinkConfig {
    /// Number that enters every draw, so that links with the same seed differ.
    pub id: u64,
    /// Direction from end A to end B.
    pub ab: PathConfig,
    /// Direction from end B to end A.
    pub ba: PathConfig,
}

impl LinkConfig {
    /// Creates a link with the same configuration in both directions.
    pub fn symmetric(path: PathConfig) -> Self {
        Self {
            id: 0,
            ab: path.clone(),
            ba: path,
        }
    }

    /// Configuration of one direction.
    pub fn path(&self, direction: Direction) -> &PathConfig {
        match direction {
            Direction::AtoB => &self.ab,
            Direction::BtoA => &self.ba,
        }
    }

    /// Sum of the delays of both directions, without jitter and queueing.
    pub fn round_trip(&self) -> Duration {
        self.ab.delay.base.mean() + self.ba.delay.base.mean()
    }

    /// Bandwidth-delay product of one direction in bytes; 0 without a rate limit.
    pub fn bandwidth_delay_product(&self, direction: Direction) -> u64 {
        let rate = self.path(direction).rate.mean();
        rate.map_or(0, |rate| rate.bandwidth_delay_product(self.round_trip()))
    }
}
