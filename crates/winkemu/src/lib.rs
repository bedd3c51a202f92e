//! winkemu: an exact and repeatable link emulator, and a lab around it.
//!
//! - [`netns`]: network namespaces, and programs and interfaces in them
//! - [`lab`]: topologies of namespaces, scenarios on them, and their reports
#![deny(unsafe_code)]

pub mod lab;
pub mod netns;
