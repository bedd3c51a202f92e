//! Why packets did not arrive.

mod classifier;

use std::time::Duration;

pub use classifier::{CauseCounts, Classifier};

/// Why packets did not arrive, as far as it can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The link damaged them. Says nothing of the rate.
    Link,
    /// They found a full queue: the rate is too high.
    Congestion,
    /// The link was not there for a while. Says nothing of the rate.
    Outage,
}

impl Cause {
    /// For programs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Link => "link",
            Self::Congestion => "congestion",
            Self::Outage => "outage",
        }
    }
}

/// Packets that followed each other and did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossEvent {
    /// The number of the first one.
    pub first: u64,
    /// How many.
    pub packets: u64,
    /// When the first one was sent.
    pub sent_at: Duration,
    /// Why.
    pub cause: Cause,
}
