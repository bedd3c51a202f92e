//! Command line of pepd, and its commands that query a running pepd, or need none.
//!
//! - [`cli`]: command line
//! - [`client`]: client of the admin socket
//! - [`commands`]: commands outside the daemon; [`output`]: printing
//! - `top`: a running pepd in a terminal
//! - `waiting`: waits for a takeover or for the end of pepd
//! - `capture`: packets of one flow as a file
//! - `migrate`: settings of PEPsal as a configuration of pepd
//!
//! [`pepd_api`] defines requests and responses. This crate is not linked with flows or tunnels.
#![forbid(unsafe_code)]

mod capture;
pub mod cli;
pub mod client;
pub mod commands;
mod migrate;
pub mod output;
mod top;
mod waiting;
