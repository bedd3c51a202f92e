//! Failure rates of codes on a link: exact, for independent losses and for losses in bursts.
//!
//! A [`Channel`] is the loss model. A block of k data packets and h rows fails if more than h of
//! its k + h packets are lost, as any k of them restore the data ([`crate::code`]). The share of
//! data then lost is the residual loss. [`Channel::block`] computes both, by dynamic programming
//! over the channel's state and the number of losses:
//!
//! ```
//! use fec::theory::Channel;
//!
//! // k, h, loss, mean burst, depth of interleaving: block failure, residual loss
//! for (k, h, loss, burst, depth, failure, residual) in [
//!     (20, 6, 0.01, None, 1, 5.6e-9, 1.5e-9),
//!     (20, 6, 0.02, None, 1, 6.0e-7, 1.6e-7),
//!     (20, 6, 0.05, None, 1, 2.2e-4, 6.1e-5),
//!     (50, 2, 0.01, None, 1, 1.5e-2, 9.3e-4),
//!     (50, 2, 0.02, None, 1, 8.6e-2, 5.4e-3),
//!     (50, 2, 0.05, None, 1, 4.9e-1, 3.7e-2),
//!     (20, 6, 0.02, Some(5.0), 1, 2.6e-2, 1.1e-2),
//!     (20, 6, 0.02, Some(5.0), 16, 2.6e-6, 7.2e-7),
//! ] {
//!     let channel = match burst {
//!         None => Channel::iid(loss)?,
//!         Some(burst) => Channel::gilbert(loss, burst)?,
//!     };
//!     let odds = channel.block(k, h, depth)?;
//!     assert!((odds.failure / failure - 1.0).abs() < 0.03, "({k}, {h}) at {loss}: {odds:?}");
//!     assert!((odds.residual / residual - 1.0).abs() < 0.03, "({k}, {h}) at {loss}: {odds:?}");
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`rows_needed`] is the inverse: it computes the rows that a target asks for, for blocks of every
//! length in one pass.
//!
//! For a sliding window there is no such formula, only a bound and a rule:
//!
//! - No code works with an overhead below p / (1 - p) for a loss rate p, the ratio of lost to
//!   received packets ([`Channel::capacity_overhead`]).
//! - A sliding window of 128 packets with the overhead of blocks of 100, as a share, loses no more
//!   than those. Its repair comes sooner, as no packet has to wait for a block's end. Other windows
//!   are assumed to behave in proportion ([`block_of_window`]).

mod block;
mod channel;
mod draw;
mod rows;
#[cfg(test)]
mod tests;

pub use block::{BlockError, BlockOdds};
pub use channel::{Channel, ChannelError};
pub use draw::Draws;
pub(crate) use rows::rows_needed_into;
pub use rows::{block_of_window, rows_needed};
