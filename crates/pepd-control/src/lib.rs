//! The command line of pepd, and its commands that ask a running one, or need none.
//!
//! - [`cli`], how the program is told
//! - [`client`], asking by the admin socket
//! - [`commands`], those of which nothing is the daemon's; [`output`], what is printed, and where
//! - `top`, a running pepd in a terminal
//! - `waiting`, until another process has taken over, or pepd has ended
//! - `capture`, the packets of one flow as a file
//! - `migrate`, what PEPsal was told, as a configuration of ours
//!
//! Orders and answers are those of [`pepd_api`]. Nothing here is linked with flows or tunnels.
#![forbid(unsafe_code)]

mod capture;
pub mod cli;
pub mod client;
pub mod commands;
mod migrate;
pub mod output;
mod top;
mod waiting;
