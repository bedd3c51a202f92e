//! The lab: real programs over emulated links, in namespaces of this one process.
//!
//! - [`topology`]: nodes joined by Ethernet or by links, with addresses and routes

pub mod topology;

pub use topology::{Node, Topology, TopologyBuilder, TopologyError};
