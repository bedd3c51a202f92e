//! The daemon: what is built from the layers beneath it, what is seen of it, the command line.
//!
//! The layers are crates: [`pepd_sys`], [`pepd_intercept`], [`pepd_relay`], [`pepd_tunnel`].
//!
//! - [`accept`], clients of a site's listeners
//! - [`admin`], how a running pepd is asked and told
//! - [`capture`], the packets of one flow as a file
//! - [`change`], another configuration for a running pepd
//! - [`cli`], how the program is told
//! - [`daemon`], build, run, drain
//! - [`diagnose`], what is amiss on this machine
//! - [`kernel`], whether this machine has what a configuration asks for
//! - [`summary`], what a configuration comes to
//! - [`migrate`], what PEPsal was told, as a configuration of ours
//! - [`observe`], what is seen of a running pepd
//! - [`page`], for browsers
//! - [`probe`], what the path to a peer is like under load
//! - [`supervisor`], the process that starts the next one
//! - [`switches`], sites that are off for a while
//! - [`top`], a running pepd in a terminal
//! - [`workers`], the threads that carry flows
#![deny(unsafe_code)]

pub mod accept;
pub mod admin;
pub mod capture;
pub mod change;
pub mod cleanup;
pub mod cli;
pub mod daemon;
pub mod diagnose;
pub mod kernel;
pub mod migrate;
pub mod observe;
pub mod page;
pub mod probe;
pub mod service;
pub mod summary;
pub mod supervisor;
pub mod switches;
pub mod top;
pub mod workers;
