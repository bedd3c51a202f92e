//! Lab: real programs over emulated links, in namespaces of this one process.
//!
//! - [`topology`]: nodes joined by Ethernet or by links, with addresses and routes
//! - [`program`]: programs that run on the nodes, and their measurements
//! - [`scenario`]: experiments as files, and the list of their runs
//! - [`run`]: execution of runs, several at a time
//! - [`report`]: JSON, tables and plots
//! - [`cli`]: `winkemu lab`

pub mod cli;
pub mod program;
pub mod report;
pub mod run;
pub mod scenario;
pub mod topology;

pub use topology::{Family, LinkEdge, Node, Topology, TopologyBuilder, TopologyError};
