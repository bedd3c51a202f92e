//! SYNs that wait for the server's answer (`syn = "defer"`).
//!
//! - [`packet`], parser of SYNs, and forged answers of a network
//! - [`Holder`], state machine of held SYNs

mod holder;
pub mod packet;
mod quota;

use std::net::SocketAddr;

pub(crate) use quota::Counts;

pub use holder::{Action, Failure, Holder, HolderConfig, HolderStats, Lan, Taken};

/// Addresses and ports of a flow, as the hosts see them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowTuple {
    /// The host that opens the connection.
    pub client: SocketAddr,
    /// Destination of the connection.
    pub destination: SocketAddr,
}
