use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use ipnet::{Ipv4Net, Ipv6Net};

use super::{Interface, Node, Topology, route};
use crate::{
    link::LinkConfig,
    netns::{Netns, NetnsError},
    shell::{AccuracyLimit, LinkError, LinkHandle, LinkSpec, MTU, Priority, Tun, TunError},
};

/// Maximum length of a node name: interfaces carry it, and Linux allows 15 bytes.
const NODE_NAME_MAX: usize = 15;
/// Time limit for carriers: the kernel notices them within a second, but machines may be busy.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of edges: the IPv4 subnet has one byte for it.
const EDGES_MAX: usize = 255;

/// Kernel settings of every node. The kernel must not carry metrics from one connection to the
/// next, and must accept packets that return by another path. IPv6 link-local addresses must work
/// at once, because routers use them for neighbour discovery.
const NODE_SYSCTLS: [(&str, &str); 7] = [
    ("net.ipv4.tcp_no_metrics_save", "1"),
    ("net.ipv4.conf.all.rp_filter", "0"),
    ("net.ipv4.conf.default.rp_filter", "0"),
    ("net.ipv6.conf.default.accept_ra", "0"),
    ("net.ipv6.conf.all.accept_dad", "0"),
    ("net.ipv6.conf.default.accept_dad", "0"),
    ("net.ipv6.conf.default.dad_transmits", "0"),
];
const FORWARDING_SYSCTLS: [(&str, &str); 2] = [
    ("net.ipv4.ip_forward", "1"),
    ("net.ipv6.conf.all.forwarding", "1"),
];

/// Failure to build a topology.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// Node name that cannot be an interface name.
    #[error("`{0}` is not a node name: 1 to 15 letters, digits, `-` or `_`, and not `lo`")]
    Name(String),
    /// Second edge between two nodes, or edge from a node to itself.
    #[error("a second edge between `{0}` and `{1}`, or one to itself")]
    Edge(String, String),
    /// More edges than subnets: their numbers end at 255.
    #[error("more than 255 edges")]
    TooMany,
    /// End of a link that could not be created.
    #[error("link `{link}`: {source}")]
    Tun {
        /// Name of the link.
        link: String,
        /// Cause.
        #[source]
        source: TunError,
    },
    /// Link that could not be started.
    #[error("link `{link}`: {source}")]
    Link {
        /// Name of the link.
        link: String,
        /// Cause.
        #[source]
        source: LinkError,
    },
    /// Operation that the system refused.
    #[error("node `{node}`: {source}")]
    Node {
        /// Name of the node.
        node: String,
        /// Cause.
        #[source]
        source: NetnsError,
    },
}

/// Builder of a [`Topology`].
#[derive(Debug, Default)]
pub struct TopologyBuilder {
    names: Vec<String>,
    edges: Vec<Edge>,
    sysctls: Vec<(String, String, String)>,
    wire_like: bool,
    mtu: Option<u32>,
}

#[derive(Debug)]
struct Edge {
    a: usize,
    b: usize,
    link: Option<LinkEdge>,
}

/// Emulated link between two nodes.
#[derive(Debug, Clone)]
pub struct LinkEdge {
    /// Name, for reports.
    pub name: String,
    /// Configuration; direction A to B begins at the node named first.
    pub config: LinkConfig,
    /// Seed of its draws.
    pub seed: u64,
    /// Accuracy limits of the run.
    pub limit: AccuracyLimit,
}

impl LinkEdge {
    /// Creates a link with this configuration, seed 1 and the default accuracy limits.
    pub fn new(name: &str, config: LinkConfig) -> Self {
        Self {
            name: name.to_owned(),
            config,
            seed: 1,
            limit: AccuracyLimit::default(),
        }
    }
}

impl TopologyBuilder {
    /// Adds an Ethernet edge between two nodes.
    #[must_use]
    pub fn veth(mut self, a: &str, b: &str) -> Self {
        let (a, b) = (self.index(a), self.index(b));
        self.edges.push(Edge { a, b, link: None });
        self
    }

    /// Adds an emulated link between two nodes.
    #[must_use]
    pub fn link(mut self, a: &str, b: &str, link: LinkEdge) -> Self {
        let (a, b) = (self.index(a), self.index(b));
        self.edges.push(Edge {
            a,
            b,
            link: Some(link),
        });
        self
    }

    /// Sets a kernel setting of a node; later calls override earlier ones.
    #[must_use]
    pub fn sysctl(mut self, node: &str, key: &str, value: &str) -> Self {
        self.index(node);
        self.sysctls
            .push((node.to_owned(), key.to_owned(), value.to_owned()));
        self
    }

    /// Disables segmentation offloads on all Ethernet edges: packets cross them one MTU at a time,
    /// as on a wire. Slower; for experiments that count packets.
    #[must_use]
    pub fn without_offloads(mut self) -> Self {
        self.wire_like = true;
        self
    }

    /// Sets the MTU of all edges in bytes; [`MTU`] by default.
    #[must_use]
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.mtu = Some(mtu);
        self
    }

    /// Builds the topology.
    ///
    /// # Errors
    /// [`TopologyError`]; everything built so far is removed.
    pub fn build(self) -> Result<Topology, TopologyError> {
        self.check()?;
        let mut nodes = self.make_nodes()?;
        let mut links = Vec::new();
        for (number, edge) in self.edges.iter().enumerate() {
            links.extend(self.join(&mut nodes, number, edge)?);
        }
        for_each_interface(&nodes, wait_ready)?;
        for_each_interface(&nodes, add_addresses)?;
        let ends: Vec<_> = self.edges.iter().map(|edge| (edge.a, edge.b)).collect();
        route::add_routes(&nodes, &ends)?;
        self.set_sysctls(&nodes)?;
        for_each_interface(&nodes, wait_ready)?;
        Ok(Topology { links, nodes })
    }

    fn index(&mut self, name: &str) -> usize {
        let known = self.names.iter().position(|known| known == name);
        known.unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        })
    }

    fn check(&self) -> Result<(), TopologyError> {
        if let Some(name) = self.names.iter().find(|name| !is_node_name(name)) {
            return Err(TopologyError::Name(name.clone()));
        }
        if self.edges.len() > EDGES_MAX {
            return Err(TopologyError::TooMany);
        }
        let mut seen = BTreeMap::new();
        for Edge { a, b, .. } in &self.edges {
            let again = seen.insert((a.min(b), a.max(b)), ()).is_some();
            if again || a == b {
                return Err(TopologyError::Edge(
                    self.names[*a].clone(),
                    self.names[*b].clone(),
                ));
            }
        }
        Ok(())
    }

    fn make_nodes(&self) -> Result<Vec<Node>, TopologyError> {
        let degree = |node: usize| {
            self.edges
                .iter()
                .filter(|e| e.a == node || e.b == node)
                .count()
        };
        let make = |(index, name): (usize, &String)| {
            let forwards = degree(index) > 1;
            let netns = make_netns(forwards).map_err(|err| at_node(name, err))?;
            Ok(Node {
                name: name.clone(),
                netns,
                interfaces: Vec::new(),
            })
        };
        self.names.iter().enumerate().map(make).collect()
    }

    /// Joins two nodes and sets both ends up; addresses come later, when there is a carrier.
    fn join(
        &self,
        nodes: &mut [Node],
        number: usize,
        edge: &Edge,
    ) -> Result<Option<(String, LinkHandle)>, TopologyError> {
        let (a, b) = (&nodes[edge.a], &nodes[edge.b]);
        let link = match &edge.link {
            Some(link) => Some((link.name.clone(), self.start_link(a, b, number, link)?)),
            None => {
                self.join_by_veth(a, b)?;
                None
            }
        };
        for (end, other, host) in [(edge.a, edge.b, 1), (edge.b, edge.a, 2)] {
            let interface = interface(&nodes[other].name, number, host);
            nodes[end].interfaces.push(interface);
        }
        Ok(link)
    }

    fn join_by_veth(&self, a: &Node, b: &Node) -> Result<(), TopologyError> {
        let veth = a.netns.add_veth(&b.name, &b.netns, &a.name);
        veth.map_err(|err| at_node(&a.name, err))?;
        for (node, other) in [(a, b), (b, a)] {
            let on = self.switch_on(&node.netns, &other.name);
            on.map_err(|err| at_node(&node.name, err))?;
        }
        Ok(())
    }

    fn switch_on(&self, netns: &Netns, interface: &str) -> Result<(), NetnsError> {
        if self.wire_like {
            netns.set_offloads(interface, false)?;
        }
        if let Some(mtu) = self.mtu {
            netns.set_mtu(interface, mtu)?;
        }
        netns.set_up(interface)
    }

    fn start_link(
        &self,
        a: &Node,
        b: &Node,
        number: usize,
        link: &LinkEdge,
    ) -> Result<LinkHandle, TopologyError> {
        let name = || link.name.clone();
        let tun = |node: &Node, other: &Node| {
            let tun = Tun::create(&node.netns, &other.name, &[], self.mtu.unwrap_or(MTU));
            tun.map_err(|source| TopologyError::Tun {
                link: name(),
                source,
            })
        };
        let mut config = link.config.clone();
        // The links of one topology draw from separate streams.
        config.id = number as u64;
        let mut spec = LinkSpec::new(tun(a, b)?, tun(b, a)?, config, link.seed);
        spec.limit = link.limit;
        // Links must stay exact on a busy machine.
        spec.priority = Priority::Preferred;
        LinkHandle::spawn(spec).map_err(|source| TopologyError::Link {
            link: name(),
            source,
        })
    }

    fn set_sysctls(&self, nodes: &[Node]) -> Result<(), TopologyError> {
        for (name, key, value) in &self.sysctls {
            let node = nodes.iter().find(|node| node.name == *name);
            let node = node.expect("sysctl() adds the node");
            node.netns
                .set_sysctl(key, value)
                .map_err(|err| at_node(name, err))?;
        }
        Ok(())
    }
}

fn for_each_interface(
    nodes: &[Node],
    apply: impl Fn(&Netns, &Interface) -> Result<(), NetnsError>,
) -> Result<(), TopologyError> {
    for node in nodes {
        for interface in &node.interfaces {
            apply(&node.netns, interface).map_err(|err| at_node(&node.name, err))?;
        }
    }
    Ok(())
}

fn wait_ready(netns: &Netns, interface: &Interface) -> Result<(), NetnsError> {
    netns.wait_ready(&interface.name, READY_TIMEOUT)
}

fn add_addresses(netns: &Netns, interface: &Interface) -> Result<(), NetnsError> {
    netns.add_address(&interface.name, interface.ipv4.into())?;
    netns.add_address(&interface.name, interface.ipv6.into())
}

fn make_netns(forwards: bool) -> Result<Netns, NetnsError> {
    let netns = Netns::new()?;
    let forwarding = FORWARDING_SYSCTLS.iter().filter(|_| forwards);
    for (key, value) in NODE_SYSCTLS.iter().chain(forwarding) {
        netns.set_sysctl(key, value)?;
    }
    Ok(netns)
}

fn interface(name: &str, edge: usize, host: u8) -> Interface {
    let number = u8::try_from(edge).expect("checked against EDGES_MAX");
    let v4 = Ipv4Addr::new(10, 77, number, host);
    let v6 = Ipv6Addr::new(0xfd77, 0, 0, number.into(), 0, 0, 0, host.into());
    Interface {
        name: name.to_owned(),
        ipv4: Ipv4Net::new(v4, 24).expect("24 bits fit"),
        ipv6: Ipv6Net::new(v6, 64).expect("64 bits fit"),
        edge,
    }
}

pub(crate) fn is_node_name(name: &str) -> bool {
    let fits = (1..=NODE_NAME_MAX).contains(&name.len()) && name != "lo";
    fits && name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

pub(super) fn at_node(node: &str, source: NetnsError) -> TopologyError {
    TopologyError::Node {
        node: node.to_owned(),
        source,
    }
}
