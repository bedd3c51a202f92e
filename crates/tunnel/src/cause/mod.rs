//! Causes of packet loss.

mod classifier;

use std::time::Duration;

pub use classifier::{CauseCounts, Classifier};

/// Cause of packet loss, as far as it can be determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The link corrupted them. Does not affect the rate.
    Link,
    /// A full queue dropped them: the rate is too high.
    Congestion,
    /// The link was down for a while. Does not affect the rate.
    Outage,
}

impl Cause {
    /// Returns the name for programs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Link => "link",
            Self::Congestion => "congestion",
            Self::Outage => "outage",
        }
    }
}

/// A run of consecutive lost packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossEvent {
    /// Number of the first packet.
    pub first: u64,
    /// Number of packets.
    pub packets: u64,
    /// Send time of the first packet.
    pub sent_at: Duration,
    /// Cause of the loss.
    pub cause: Cause,
}
