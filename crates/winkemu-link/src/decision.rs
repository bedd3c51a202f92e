//! What was decided for each packet, so that a run can be written down and decided again.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{Cause, Direction, Nanos};

/// Everything decided about one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// Which way it went.
    pub direction: Direction,
    /// How many went before it in this direction.
    pub index: u64,
    /// Its length in bytes.
    pub bytes: u32,
    /// When it was offered, in nanoseconds since the link began.
    pub offered: Nanos,
    /// What became of it.
    #[serde(flatten)]
    pub fate: Fate,
}

/// What became of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fate", rename_all = "snake_case")]
pub enum Fate {
    /// It does not arrive.
    Dropped {
        /// Why.
        cause: Cause,
    },
    /// It arrives.
    Delivered {
        /// When it comes out, in nanoseconds since the link began.
        due: Nanos,
        /// Of that, jitter, in nanoseconds.
        #[serde(default, skip_serializing_if = "is_default")]
        jitter: Nanos,
        /// It arrives twice.
        #[serde(default, skip_serializing_if = "is_default")]
        duplicate: bool,
        /// This bit is flipped, counted from the first byte's most significant one.
        #[serde(default, skip_serializing_if = "is_default")]
        corrupt_bit: Option<u32>,
    },
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The part of a fate that does not depend on the traffic's timing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Draw {
    Lost(Cause),
    Passes {
        jitter: Nanos,
        duplicate: bool,
        corrupt_bit: Option<u32>,
    },
}

/// The recorded draws of one direction.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    draws: HashMap<u64, Draw>,
}

impl Recording {
    pub(crate) fn add(&mut self, decision: &Decision) {
        let draw = match decision.fate {
            // Queues are emulated anew: what they hold depends on the traffic.
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
