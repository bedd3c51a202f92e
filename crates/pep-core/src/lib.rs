//! What pepd decides, without any I/O: no socket, file, clock or thread.
//!
//! - [`config`], TOML text to checked types
//! - [`site`], which policy a flow gets
//! - [`stats`], counters
#![forbid(unsafe_code)]

pub mod config;
pub mod site;
pub mod stats;
