//! Link emulation as a pure engine: packets and the time go in, packets and a deadline come out.
//!
//! ```text
//!         queue           serialiser    outage    loss       delay      mangle
//! in -> [ drop-tail, ] -> [ rate or  ] -> gate -> [ PER,  ] -> [ fixed, ] -> [ duplicate, ] -> out
//!       [ drop-head, ]    [ trace,   ]            [ BER,  ]    [ trace, ]    [ corrupt    ]
//!       [ CoDel      ]    [ overhead ]            [ burst,]    [ jitter ]
//!                                                 [ trace ]
//! ```
//!
//! Each direction has its own stages. The engine reads no clock, file or socket: time is an
//! argument, in nanoseconds since the link began. [`Engine`] is the whole link, and [`Sim`] runs
//! one in virtual time. [`predict`] models the duration of transfers over a link.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod config;
mod decision;
mod delay;
mod engine;
mod history;
mod loss;
mod options;
mod outage;
mod path;
pub mod predict;
mod queue;
mod random;
mod serialiser;
mod sim;
mod stats;
pub mod trace;

pub use config::{
    Aqm, DelayConfig, DelayModel, Gilbert, InFlight, Jitter, JitterShape, LinkConfig, LossConfig,
    OnOff, Outage, PathConfig, Periodic, QueueConfig, QueueLimit, Queued, RateModel, Spans,
    ValueError, Wink, nanos,
};
pub use decision::{Decision, Fate};
pub use engine::Engine;
pub use history::{Occupancy, QueueHistory};
pub use options::{LinkOptions, OptionError, PathOptions, Source};
pub use outage::Availability;
pub use path::FLIGHT_BYTES_MAX;
pub use sim::{Arrival, Sim};
pub use stats::{Cause, Drops, PathStats};

/// Nanoseconds since the link began.
pub type Nanos = u64;

/// Nanoseconds in a second.
pub const NANOS_PER_SECOND: Nanos = 1_000_000_000;

/// Sentinel for an instant that never comes.
pub(crate) const FOREVER: Nanos = Nanos::MAX;

/// Direction of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Direction {
    /// From end A to end B.
    #[serde(rename = "ab")]
    AtoB = 0,
    /// From end B to end A.
    #[serde(rename = "ba")]
    BtoA = 1,
}

impl Direction {
    /// Both directions.
    pub const BOTH: [Self; 2] = [Self::AtoB, Self::BtoA];

    /// Reverse direction.
    pub const fn opposite(self) -> Self {
        match self {
            Self::AtoB => Self::BtoA,
            Self::BtoA => Self::AtoB,
        }
    }
}

/// Packet inside the link, or just delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Content as handed in, apart from a flipped bit.
    pub bytes: Vec<u8>,
    /// Number of packets before it in its direction.
    pub index: u64,
    /// Arrival at the link.
    pub offered: Nanos,
    /// Delivery time; unset before the packet is in flight.
    pub due: Nanos,
}

#[cfg(test)]
mod tests;
