//! SYNs that wait for the server's answer (`syn = "defer"`).
//!
//! - [`packet`], reading a SYN and forging the answers a network would give
//! - [`Holder`], what becomes of each SYN

mod expiring;
mod holder;
pub mod packet;
mod quota;

use std::net::SocketAddr;

pub use holder::{Action, Failure, Holder, HolderConfig, HolderStats, Lan, Taken};

/// The four addresses of a flow, as the hosts see them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowTuple {
    /// The host that opens the connection.
    pub client: SocketAddr,
    /// Where it wants to go.
    pub destination: SocketAddr,
}
