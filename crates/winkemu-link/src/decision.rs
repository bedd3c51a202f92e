//! Record of the decision for each packet, for writing a run to a file and replaying it.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{Cause, Direction, Nanos};

/// Decision for one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// Direction of the packet.
    pub direction: Direction,
    /// Number of packets before it in this direction.
    pub index: u64,
    /// Length in bytes.
    pub bytes: u32,
    /// Arrival at the link, in nanoseconds since the link began.
    pub offered: Nanos,
    /// Outcome for the packet.
    #[serde(flatten)]
    pub fate: Fate,
}

/// Outcome for a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fate", rename_all = "snake_case")]
pub enum Fate {
    /// The packet does not arrive.
    Dropped {
        /// Cause of the loss.
        cause: Cause,
    },
    /// The packet arrives.
    Delivered {
        /// Delivery time, in nanoseconds since the link began.
        due: Nanos,
        /// Part of the delay that is jitter, in nanoseconds.
        #[serde(default, skip_serializing_if = "is_default")]
        jitter: Nanos,
        /// The packet arrives twice.
        #[serde(default, skip_serializing_if = "is_default")]
        duplicate: bool,
        /// Position of the flipped bit, counted from the most significant bit of the first byte.
        #[serde(default, skip_serializing_if = "is_default")]
        corrupt_bit: Option<u32>,
    },
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Part of a fate that does not depend on the timing of the traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Draw {
    Lost(Cause),
    Passes {
        jitter: Nanos,
        duplicate: bool,
        corrupt_bit: Option<u32>,
    },
}

/// Recorded draws of one direction.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    draws: HashMap<u64, Draw>,
}

impl Recording {
    pub(crate) fn add(&mut self, decision: &Decision) {
        let draw = match decision.fate {
            // Queue drops are not replayed: they depend on the timing of the traffic.
            Fate::Dropped {
                cause: Cause::QueueFull | Cause::CoDel | Cause::PipeFull,
            } => return,
            Fate::Dropped { cause } => Draw::Lost(cause),
            Fate::Delivered {
                jitter,
                duplicate,
                corrupt_bit,
                ..
            } => Draw::Passes {
                jitter,
                duplicate,
                corrupt_bit,
            },
        };
        self.draws.insert(decision.index, draw);
    }

    pub(crate) fn draw(&self, index: u64) -> Option<Draw> {
        self.draws.get(&index).copied()
    }
}
