//! FEC control that follows the link. Loss is measured before decoding and fitted to a channel
//! model; the overhead is the minimum that meets a target on that channel.
//!
//! ```text
//!   receiver                                    sender
//!   packet numbers -> LossMeter -> Counts  ->   Control -> Overhead -> encoder
//!                                (in reports)      ^
//!                                               congestion, as the caller sees it
//! ```
//!
//! [`LossMeter`] turns the numbers of arriving packets into runs of received and lost ones, and
//! [`Counts`] sums them up. [`Control`] remembers counts until the link changes, makes an
//! [`Estimate`] of them, and from that an [`Overhead`](crate::overhead::Overhead). Everything is
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
