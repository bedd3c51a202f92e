//! Requests to a running pepd and its responses: JSON on the admin socket for programs, and text.
//!
//! - [`status`], [`custody`], [`flows`], [`trace`], [`history`]: state
//! - [`link`], [`sites`], [`change`], [`probe`]: requests that change or measure something
//! - [`exit`]: exit codes
//! - [`text`]: formatting of numbers and names
//!
//! This crate only defines the data: the daemon fills these types, and commands show them.
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
