//! Flows that are split here: connect, relay, close, and outlive the process that carries them.
//!
//! - [`flow`], one connection
//! - [`arena`], the memory of all flows
//! - [`limits`], how many flows there may be
//! - [`share`], how fast each flow may send into the link
//! - [`outage`], whether the link is there
//! - [`survive`], flows that outlive the process that carries them
#![deny(unsafe_code)]

pub mod arena;
pub mod flow;
pub mod limits;
pub mod outage;
pub mod share;
pub mod survive;
