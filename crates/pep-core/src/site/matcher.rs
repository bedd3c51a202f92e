//! What a site matches: prefixes, ports, DSCP and interface of a flow's first packet.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use ipnet::IpNet;

use super::Protocol;
use super::names::IfName;

/// What is known of a flow when its SYN arrives, or of a packet that belongs to none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowKey<'a> {
    /// What is above IP.
    pub protocol: Protocol,
    /// The host that opens the connection, or sends the packet; port 0 where the protocol has none.
    pub src: SocketAddr,
    /// Where it wants to go.
    pub dst: SocketAddr,
    /// The DSCP of its SYN, 0 to 63.
    pub dscp: u8,
    /// The interface on which the SYN came in.
    pub interface: &'a str,
}

/// An inclusive range of ports; `first <= last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// Every port, 0 included, which no SYN should carry but some do.
    pub const ANY: Self = Self {
        first: 0,
        last: u16::MAX,
    };

    /// The ports from `first` to `last`, both included; `None` when there are none.
    pub const fn new(first: u16, last: u16) -> Option<Self> {
        if first <= last {
            Some(Self { first, last })
        } else {
            None
        }
    }

    /// A single port.
    pub const fn single(port: u16) -> Self {
        Self {
            first: port,
            last: port,
        }
    }

    /// The lowest port.
    pub const fn first(self) -> u16 {
        self.first
    }

    /// The highest port.
    pub const fn last(self) -> u16 {
        self.last
    }

    /// Whether `port` lies in the range.
    pub const fn contains(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

/// What a site matches. Every list must take the flow; an empty list takes any.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Matcher {
    /// What is above IP. Default: TCP for modes that carry flows; for others any, but where there
    /// are ports TCP and UDP.
    pub protocol: Vec<Protocol>,
    /// Prefixes of the host that opens the connection; default any.
    pub src: Vec<IpNet>,
    /// Prefixes of the destination; default any.
    pub dst: Vec<IpNet>,
    /// Source ports; default any, since hosts choose them at random.
    pub sport: Vec<PortRange>,
    /// Destination ports; default any.
    pub dport: Vec<PortRange>,
    /// DSCP values of the SYN, 0 to 63; default any.
    pub dscp: Vec<u8>,
    /// Interfaces on which the SYN arrives, each one of `intercept.lan`; default any.
    pub interface: Vec<IfName>,
}

impl Matcher {
    /// Whether this is a group of hosts (multicast), and the destinations name groups: those of a site that takes any
    /// destination, or any of a prefix that has others too, are not meant.
    pub fn names_group(&self, group: IpAddr) -> bool {
        let all = |base: IpAddr| match base {
            IpAddr::V4(_) => IpNet::new(Ipv4Addr::new(224, 0, 0, 0).into(), 4),
            IpAddr::V6(_) => IpNet::new(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0).into(), 8),
        };
        let is_of_groups = |net: &&IpNet| all(net.addr()).is_ok_and(|all| all.contains(*net));
        let mut groups = self.dst.iter().filter(is_of_groups);
        groups.any(|net| net.contains(&group))
    }

    /// Whether a flow belongs to the site.
    pub fn matches(&self, flow: &FlowKey<'_>) -> bool {
        let port_in = |ranges: &[PortRange], port| {
            ranges.is_empty() || ranges.iter().any(|range| range.contains(port))
        };
        let address_in = |nets: &[IpNet], address: SocketAddr| {
            nets.is_empty() || nets.iter().any(|net| net.contains(&address.ip()))
        };
        (self.protocol.is_empty() || self.protocol.contains(&flow.protocol))
            && address_in(&self.src, flow.src)
            && address_in(&self.dst, flow.dst)
            && port_in(&self.sport, flow.src.port())
            && port_in(&self.dport, flow.dst.port())
            && (self.dscp.is_empty() || self.dscp.contains(&flow.dscp))
            && (self.interface.is_empty()
                || self
                    .interface
                    .iter()
                    .any(|name| name.as_str() == flow.interface))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_to_be_named() {
        let names = |prefixes: &[&str], group: &str| {
            let net = |text: &&str| text.parse().expect("a prefix");
            let matcher = Matcher {
                dst: prefixes.iter().map(net).collect(),
                ..Matcher::default()
            };
            matcher.names_group(group.parse().expect("an address"))
        };
        assert!(names(&["10.0.0.0/8", "239.1.0.0/16"], "239.1.2.3"));
        assert!(names(&["224.0.0.0/4"], "239.1.2.3"));
        assert!(names(&["ff1e::/16"], "ff1e::7"));
        for prefixes in [
            &[][..],
            &["0.0.0.0/0"],
            &["192.0.0.0/2"],
            &["ff1e::/16", "::/0"],
        ] {
            assert!(!names(prefixes, "239.1.2.3"), "{prefixes:?}");
        }
        assert!(!names(&["10.0.0.0/8"], "10.1.2.3"), "no group");
    }
}
