//! What pepd decides, without any I/O: no socket, file, clock or thread.
//!
//! - [`arena`], what outlives the process, and what a successor makes of it
//! - [`budget`], a sum of bytes that is never exceeded
//! - [`chunks`], where the bytes of a stream are that does not come in order
//! - [`config`], TOML text to checked types
//! - [`custody`], who may hold how much of what hosts were told we have
//! - [`greeting`], what is said of a flow at the far end of its tunnel
//! - [`history`], what was seen over the last hours
//! - [`hosts`], how many flows each host has
//! - [`key`], keys of tunnels as text
//! - [`lookups`], when to ask again for the addresses of a name
//! - [`outage`], whether the link is there
//! - [`redirection`], whether SYNs that rules redirect arrive
//! - [`relay`], what to do next with the two legs of a flow
//! - [`ring`], where the bytes of a half are
//! - [`share`], at which rate each flow may send into the link
//! - [`site`], which policy a flow gets
//! - [`stats`], counters
//! - [`syn`], SYNs that wait for the server's answer
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod arena;
pub mod budget;
pub mod chunks;
pub mod config;
pub mod custody;
pub mod greeting;
pub mod history;
pub mod hosts;
pub mod key;
pub mod lookups;
pub mod outage;
mod reading;
pub mod redirection;
pub mod relay;
pub mod ring;
pub mod share;
pub mod site;
pub mod stats;
pub mod syn;
