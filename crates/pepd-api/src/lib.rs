//! Orders to a running pepd and its answers, as data for programs (JSON on the admin socket) and as
//! text for people.
//!
//! - [`status`], [`custody`], [`flows`], [`trace`], [`history`], what is seen of it
//! - [`link`], [`sites`], [`change`], [`probe`], what is ordered, and what comes of that
//! - [`exit`], how the program ends
//! - [`text`], numbers and names for people
//!
//! Nothing here asks anybody: the daemon fills these types, and commands show them.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod change;
pub mod custody;
pub mod exit;
pub mod flows;
pub mod history;
pub mod link;
pub mod probe;
pub mod sites;
pub mod status;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod text;
pub mod trace;
