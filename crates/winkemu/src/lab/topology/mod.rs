//! Nodes (namespaces) and edges (Ethernet pairs or emulated links), addressed and routed.
//!
//! ```no_run
//! use winkemu::lab::Topology;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let lab = Topology::chain(&["client", "router", "server"])?;
//! let address = (lab.node("server").ipv4(), 80);
//! let listener = lab.node("server").netns().enter(|| std::net::TcpListener::bind(address))??;
//! let stream = lab.node("client").netns().enter(|| std::net::TcpStream::connect(address))??;
//! # drop((listener, stream)); Ok(())
//! # }
//! ```
//!
//! Edge *n* has the subnets `10.77.n.0/24` and `fd77:0:0:n::/64`; its first node is host 1, its
//! second host 2. An interface is named after the node at its far end. Every node has routes to
//! all subnets; nodes with several edges forward.

mod builder;
mod route;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Instant,
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

pub(super) use builder::is_node_name;
pub use builder::{LinkEdge, TopologyBuilder, TopologyError};

use crate::{
    netns::{Netns, NetnsError},
    shell::{LinkHandle, LinkReport},
};

/// Namespaces joined by edges; dropping it ends everything in it.
#[derive(Debug)]
pub struct Topology {
    /// Declared before the nodes, so that links end first.
    links: Vec<(String, LinkHandle)>,
    nodes: Vec<Node>,
}

impl Topology {
    /// Creates an empty builder.
    pub fn builder() -> TopologyBuilder {
        TopologyBuilder::default()
    }

    /// Builds a chain of nodes, each joined to the next by Ethernet.
    ///
    /// # Errors
    /// [`TopologyError`], mostly without permission to create namespaces.
    pub fn chain(names: &[&str]) -> Result<Self, TopologyError> {
        let edges = names.windows(2).map(|pair| (pair[0], pair[1]));
        edges
            .fold(Self::builder(), |builder, (a, b)| builder.veth(a, b))
            .build()
    }

    /// Node of this name.
    ///
    /// # Panics
    /// A name that the builder was not given.
    pub fn node(&self, name: &str) -> &Node {
        self.find(name)
            .unwrap_or_else(|| panic!("the topology has no node `{name}`"))
    }

    /// Node of this name, if it exists.
    pub fn find(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.name == name)
    }

    /// Stops the links, and returns their reports by name.
    ///
    /// # Panics
    /// A panic of a link's thread.
    pub fn stop_links(&mut self) -> Vec<(String, LinkReport)> {
        let links = self.links.drain(..);
        links.map(|(name, link)| (name, link.stop())).collect()
    }

    /// Instant at which the time of the first link is 0; the others follow within milliseconds.
    pub fn links_began(&self) -> Option<Instant> {
        self.links.first().map(|(_, link)| link.began())
    }

    /// All nodes, in the order of their first mention to the builder.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }
}

/// Namespace with its interfaces.
#[derive(Debug)]
pub struct Node {
    name: String,
    netns: Netns,
    interfaces: Vec<Interface>,
}

/// End of an edge at a node.
#[derive(Debug, Clone)]
pub struct Interface {
    /// Name, which is that of the node at the far end.
    pub name: String,
    /// IPv4 address and subnet.
    pub ipv4: Ipv4Net,
    /// IPv6 address and subnet.
    pub ipv6: Ipv6Net,
    edge: usize,
}

impl Node {
    /// Name given to the builder.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Namespace of the node.
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Interface toward a neighbour, named after it.
    ///
    /// # Panics
    /// A node that is not a neighbour.
    pub fn interface(&self, neighbour: &str) -> &Interface {
        let found = self
            .interfaces
            .iter()
            .find(|interface| interface.name == neighbour);
        found.unwrap_or_else(|| panic!("`{}` has no neighbour `{neighbour}`", self.name))
    }

    /// IPv4 address of the first interface.
    ///
    /// # Panics
    /// A node without edges.
    pub fn ipv4(&self) -> Ipv4Addr {
        self.interfaces[0].ipv4.addr()
    }

    /// IPv6 address of the first interface.
    ///
    /// # Panics
    /// A node without edges.
    pub fn ipv6(&self) -> Ipv6Addr {
        self.interfaces[0].ipv6.addr()
    }

    /// Address of the first interface in a family.
    ///
    /// # Panics
    /// A node without edges.
    pub fn ip(&self, family: Family) -> IpAddr {
        match family {
            Family::Ipv4 => self.ipv4().into(),
            Family::Ipv6 => self.ipv6().into(),
        }
    }

    /// Makes a congestion control the default of the node's sockets.
    ///
    /// If the kernel refuses it as the default of a namespace, it becomes that of all current
    /// routes, with the consequences of [`Netns::set_route_congestion`].
    ///
    /// # Errors
    /// [`NetnsError::Sysctl`] or [`NetnsError::Netlink`]: the kernel has no congestion control of
    /// that name.
    pub fn set_congestion(&self, name: &str) -> Result<(), NetnsError> {
        // Check instead of trying: when Linux refuses an eBPF control here, it never releases the
        // program.
        let allowed = self
            .netns
            .sysctl("net.ipv4.tcp_allowed_congestion_control")?;
        if allowed.split_whitespace().any(|allowed| allowed == name) {
            self.netns
                .set_sysctl("net.ipv4.tcp_congestion_control", name)
        } else {
            self.netns.set_route_congestion(name)
        }
    }

    /// Adds a default route through a neighbour.
    ///
    /// # Errors
    /// [`NetnsError::Netlink`]: a default route exists already.
    ///
    /// # Panics
    /// A node that is not a neighbour.
    pub fn add_default_route(&self, neighbour: &str) -> Result<(), NetnsError> {
        let interface = self.interface(neighbour);
        let (v4, v6) = (
            other_host(interface.ipv4.addr()),
            other_host6(interface.ipv6.addr()),
        );
        let all4: IpNet = Ipv4Net::default().into();
        self.netns.add_route(all4, Some(v4.into()), None)?;
        self.netns
            .add_route(Ipv6Net::default().into(), Some(v6.into()), None)
    }
}

/// Address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// Other host of an edge. Hosts are 1 and 2, so flipping both low bits gives the other one.
fn other_host(host: Ipv4Addr) -> Ipv4Addr {
    Ipv4Addr::from_bits(host.to_bits() ^ 3)
}

fn other_host6(host: Ipv6Addr) -> Ipv6Addr {
    Ipv6Addr::from_bits(host.to_bits() ^ 3)
}

#[cfg(test)]
mod tests;
