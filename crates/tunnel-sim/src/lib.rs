//! Simulator of both ends of a tunnel over a link of winkemu in virtual time, with checks for
//! protocol violations.
//!
//! ```text
//!   plan            what happens: link, streams, writers, readers, resets, stalls; all from a seed
//!     |
//!   world           the clock jumps from deadline to deadline
//!     +-- side        under test: a session, an endpoint, or the reference
//!     +-- wire        IP packets around datagrams, over the link
//!     +-- ledger      requested, written, placed and reported at both ends; model of all checks
//! ```
//!
//! The [`rig`] is separate: two sessions and a link for measurements.
//!
//! A [`Plan`] is drawn from a seed, and so is all other randomness: equal seeds give equal runs. A
//! run ends when all streams have ended as they should, or in a [`Failure`] with the violation, its
//! time, the end, and how to repeat it.
#![forbid(unsafe_code)]

pub mod beside;
pub mod endpoint;
pub mod explore;
pub mod flow;
pub mod ledger;
pub mod plan;
pub mod ranges;
pub mod reference;
pub mod rig;
pub mod rng;
pub mod sealed;
pub mod session;
pub mod side;
pub mod violation;
pub mod wire;
pub mod world;

pub use plan::Plan;
pub use side::{End, Setup, Side};
pub use violation::{Failure, Violation};
pub use world::World;
