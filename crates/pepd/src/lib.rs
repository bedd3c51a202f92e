//! The daemon: what is built from the layers beneath it, what is seen of it, what is amiss on this machine.
//!
//! The layers are crates: [`pepd_api`], [`pepd_sys`], [`pepd_intercept`], [`pepd_relay`],
//! [`pepd_tunnel`]; [`pepd_control`] has the command line and what asks a running pepd.
//!
//! - `accept`, clients of a site's listeners
//! - `admin`, how a running pepd is asked and told
//! - `change`, another configuration for a running pepd
//! - [`daemon`], build, run, drain
//! - [`diagnose`], what is amiss on this machine
//! - [`kernel`], whether this machine has what a configuration asks for
//! - [`summary`], what a configuration comes to
//! - `observe`, what is seen of a running pepd
//! - `page`, for browsers
//! - `probe`, what the path to a peer is like under load
//! - [`supervisor`], the process that starts the next one
//! - `switches`, sites that are off for a while
//! - `workers`, the threads that carry flows
#![deny(unsafe_code)]

mod accept;
mod admin;
mod change;
pub mod cleanup;
pub mod daemon;
pub mod diagnose;
pub mod kernel;
mod observe;
mod page;
mod probe;
mod service;
pub mod summary;
pub mod supervisor;
mod switches;
mod workers;
