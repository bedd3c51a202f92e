//! Comparison of pepd's speed with the same path without it.
//!
//! A [`Bed`] is three namespaces in a row: a client, a machine in the middle, a server. The middle
//! forwards packets, and runs pepd on some beds. Several beds exist at the same time and are
//! measured in turns, so that other load on the machine affects all alike. Every traffic tool moves
//! bytes in large pieces and times at the receiver.

mod bed;
mod boats;
mod bulk;
mod datagrams;
mod echo;
mod hub;
mod machine;
mod measures;
mod meter;
mod report;
mod strangers;
mod summary;

pub use bed::{Bed, Variant};
pub use hub::{Carried, Cost, Fleet, Idle, Uploaded};
pub use machine::Machine;
pub use measures::{Measure, Plan};
pub use report::Report;
pub use summary::Summary;

/// The result of a measurement; an error ends the whole run.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;
