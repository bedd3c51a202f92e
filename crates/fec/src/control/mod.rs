//! Overcode that follows the link: loss is measured before decoding, a channel is fitted to it, and
//! there is as much overcode as a target asks for on that channel, and no more.
//!
//! ```text
//!   receiver                                    sender
//!   packet numbers -> LossMeter -> Counts  ->   Control -> Overcode -> encoder
//!                                (in reports)      ^
//!                                               congestion, as the caller sees it
//! ```
//!
//! [`LossMeter`] turns the numbers of packets that arrive into runs of received and lost ones;
//! [`Counts`] sum these up; [`Control`] remembers them for as long as the link has not changed, makes
//! an [`Estimate`] of them, and an [`Overhead`](crate::overcode::Overcode) of that. Everything is
//! counted in packets; there is no clock.

mod counts;
mod estimate;
mod history;
mod meter;
mod policy;
#[cfg(test)]
mod tests;

pub use counts::{Counts, CountsError, Run};
pub use estimate::{Estimate, Measured};
pub use meter::{LossMeter, MeterConfig, MeterStats};
pub use policy::{
    Control, ControlConfig, ControlError, Manual, Standing, TARGET_PACKETS, TARGET_STREAMS,
};
