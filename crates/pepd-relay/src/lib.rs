//! Flows split at this host: connect, relay, close, and outlive the process that carries them.
//!
//! - [`flow`], one connection
//! - [`arena`], the memory of all flows
//! - [`limits`], the number of flows
//! - [`share`], the rate of each flow into the link
//! - [`outage`], the state of the link
//! - [`survive`], flows that outlive the process that carries them
#![deny(unsafe_code)]

pub mod arena;
pub mod flow;
pub mod limits;
pub mod outage;
pub mod share;
pub mod survive;
