//! winkemu: an exact and repeatable link emulator, and a lab around it.
//!
//! - [`link`]: the link itself, pure: packets and the time in, packets and a deadline out
//! - [`presets`]: links by name
//! - [`shell`]: a link between TUN interfaces, on a thread of its own
//! - [`netns`]: network namespaces, and programs and interfaces in them
//! - [`lab`]: topologies of namespaces, scenarios on them, and their reports
#![deny(unsafe_code)]

pub mod lab;
pub mod link;
pub mod netns;
pub mod presets;
pub mod shell;
