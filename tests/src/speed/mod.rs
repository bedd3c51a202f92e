//! Measuring pepd's speed beside the same path without it.
//!
//! A [`Bed`] is three namespaces in a row: a client, a machine in the middle, a server. In the
//! middle packets are forwarded, and on some beds pepd runs there too. Several beds exist at the
//! same time and are measured in turns, so that what else the machine does falls on all of them
//! alike. Every traffic tool moves bytes in large pieces and times at the receiver.

mod bed;
mod bulk;
mod datagrams;
mod echo;
mod measures;
mod meter;
mod report;
mod strangers;
mod summary;

pub use bed::{Bed, Variant};
pub use measures::{Measure, Plan};
pub use report::Report;
pub use summary::Summary;

/// What a measurement returns; an error ends the whole run.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;
