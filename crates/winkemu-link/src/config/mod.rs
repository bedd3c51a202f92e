//! What a link is made of: checked values, each of which makes sense by itself.
//!
//! [`LinkConfig`] is what the engine runs; [`super::LinkOptions`] is how people write it.

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

/// Nanoseconds of a duration, saturating after 584 years.
pub fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(Nanos::MAX)
}

/// How fast the link sends.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RateModel {
    /// No limit: packets leave as they come.
    Unlimited,
    /// A constant rate.
    Fixed(Rate),
    /// Bit/s over time, from the start of the link; 0 stops it.
    Trace(Trace<u64>),
}

impl RateModel {
    /// The mean rate in bit/s; `None` without a limit.
    pub fn mean(&self) -> Option<Rate> {
        match self {
            Self::Unlimited => None,
            Self::Fixed(rate) => Some(*rate),
            Self::Trace(trace) => Rate::from_bits_per_second(trace.mean(|bits| bits as f64) as u64),
        }
    }
}

/// The queue ahead of the link.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct QueueConfig {
    /// How much it holds.
    pub limit: QueueLimit,
    /// Which packet goes when that is too little.
    pub aqm: Aqm,
}

/// Ten full-sized packets: less could not carry a window of TCP over a link without delay.
const QUEUE_BYTES_MIN: u64 = 15_000;

impl QueueConfig {
    /// The bounds in bytes and in packets.
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

/// The delay without jitter.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DelayModel {
    /// A constant.
    Fixed(#[serde(with = "units::duration")] Duration),
    /// Nanoseconds over time, taken when a packet's last bit is sent.
    Trace(Trace<Nanos>),
}

impl Default for DelayModel {
    fn default() -> Self {
        Self::Fixed(Duration::ZERO)
    }
}

impl DelayModel {
    /// The constant, or the mean over the trace.
    pub fn mean(&self) -> Duration {
        match self {
            Self::Fixed(delay) => *delay,
            Self::Trace(trace) => Duration::from_nanos(trace.mean(|ns| ns as f64) as u64),
        }
    }
}

/// How long packets are on their way.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct DelayConfig {
    /// Without jitter.
    pub base: DelayModel,
    /// Added to it.
    pub jitter: Jitter,
    /// Whether packets may overtake each other; otherwise one waits for those before it.
    pub reorder: bool,
}

/// Loss on the link. A packet is lost when any model says so.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct LossConfig {
    /// Packet error ratio, whatever the size.
    pub packet: Ratio,
    /// Bit error ratio: a packet of n bytes on the wire is lost with `1 - (1 - BER)^(8 n)`.
    pub bit_errors: Ratio,
    /// Bursts.
    pub burst: Option<Gilbert>,
    /// Packet k is lost where entry k is true; starts again at its end.
    #[serde(skip)]
    pub trace: Option<Arc<[bool]>>,
}

/// One direction of a link.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PathConfig {
    /// How fast it sends.
    pub rate: RateModel,
    /// Bytes that each packet takes on the wire beyond its own; at most 1000.
    pub overhead_bytes: u16,
    /// What waits to be sent.
    pub queue: QueueConfig,
    /// When it is down. The same outage in both directions is down at the same times.
    pub outages: Vec<Outage>,
    /// What an outage does to packets that wait.
    pub queued: Queued,
    /// What an outage does to packets in flight.
    pub in_flight: InFlight,
    /// What it loses.
    pub loss: LossConfig,
    /// How long packets travel.
    pub delay: DelayConfig,
    /// Share of packets that arrive twice.
    pub duplicate: Ratio,
    /// Share of packets with one bit flipped.
    pub corrupt: Ratio,
}

impl Default for PathConfig {
    /// A wire: no limit, no delay, no loss.
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

/// A link: two directions, independent but for outages.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct LinkConfig {
    /// Part of every draw, so that several links with one seed differ.
    pub id: u64,
    /// From the end called A.
    pub ab: PathConfig,
    /// From the end called B.
    pub ba: PathConfig,
}

impl LinkConfig {
    /// A link that is the same in both directions.
    pub fn symmetric(path: PathConfig) -> Self {
        Self {
            id: 0,
            ab: path.clone(),
            ba: path,
        }
    }

    /// One direction.
    pub fn path(&self, direction: Direction) -> &PathConfig {
        match direction {
            Direction::AtoB => &self.ab,
            Direction::BtoA => &self.ba,
        }
    }

    /// The delay of both directions, without jitter and waiting.
    pub fn round_trip(&self) -> Duration {
        self.ab.delay.base.mean() + self.ba.delay.base.mean()
    }

    /// The bandwidth-delay product of one direction in bytes; 0 without a rate limit.
    pub fn bandwidth_delay_product(&self, direction: Direction) -> u64 {
        let rate = self.path(direction).rate.mean();
        rate.map_or(0, |rate| rate.bandwidth_delay_product(self.round_trip()))
    }
}
