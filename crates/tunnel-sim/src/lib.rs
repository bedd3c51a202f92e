//! Two ends of a tunnel joined by a link of winkemu in virtual time, and everything they must not do.
//!
//! ```text
//!   plan            what happens: link, streams, writers, readers, resets, stalls; all from a seed
//!     |
//!   world           the clock jumps from deadline to deadline
//!     +-- side        what is under test: a session, an endpoint, or the reference
//!     +-- wire        IP packets around datagrams, over the link
//!     +-- ledger      what was asked, written, placed and told, by both; the model it is held against
//! ```
//!
//! Beside it stands the [`rig`], two sessions and a link for who measures.
//!
//! A [`Plan`] is drawn from a number, and so is everything else: the same number is the same run. A run ends
//! when all streams have ended as they should, or in a [`Failure`] that says what was violated, when, by whom,
//! and how to see it again.
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
