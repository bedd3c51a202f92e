//! Matcher of a site: prefixes, ports, DSCP and interface of a flow's first packet.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use ipnet::IpNet;

use super::{
    Mode, Protocol,
    headers::{Dscp, Ports, Prefix, Protocols},
    names::IfName,
};
use crate::reading::{Section, section, values::text};

/// Properties of a flow when its SYN arrives, or of a packet outside flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowKey<'a> {
    /// Protocol above IP.
    pub protocol: Protocol,
    /// Host that opens the connection, or sends the packet; port 0 where the protocol has none.
    pub src: SocketAddr,
    /// Destination of the connection or packet.
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

    /// Ports from `first` to `last`, both included; `None` for an empty range.
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

    /// Reports whether `port` lies in the range.
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

section! {
    /// Matcher of a site. Every list must match the flow; an empty list matches any.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct Matcher(s, mode: Mode) {
        /// Prefixes of the host that opens the connection.
        src: Vec<IpNet> = s.list("src", Prefix).unwrap_or_default();
        /// Prefixes of the destination.
        dst: Vec<IpNet> = s.list("dst", Prefix).unwrap_or_default();
        /// Source ports.
        sport: Vec<PortRange> = s.list("sport", Ports).unwrap_or_default();
        /// Destination ports.
        dport: Vec<PortRange> = s.list("dport", Ports).unwrap_or_default();
        /// DSCP values of the SYN, 0 to 63.
        dscp: Vec<u8> = s.list("dscp", Dscp).unwrap_or_default();
        /// Interfaces on which the SYN arrives, each one of `intercept.lan`.
        interface: Vec<IfName> =
            s.list("interface", text("the name of an interface")).unwrap_or_default();
        /// Protocols above IP. Default: TCP for modes that carry flows; otherwise any, or TCP and
        /// UDP where ports are given.
        protocol: Vec<Protocol> = read_protocols(s, mode);
    }
}

impl Matcher {
    /// Matcher of the packets in the other direction. Ignores DSCP and interface, as a packet and
    /// its answer may differ in both.
    #[must_use]
    pub fn mirrored(&self) -> Self {
        Self {
            src: self.dst.clone(),
            dst: self.src.clone(),
            sport: self.dport.clone(),
            dport: self.sport.clone(),
            dscp: Vec::new(),
            interface: Vec::new(),
            protocol: self.protocol.clone(),
        }
    }
}

/// Reads the protocols of a site's `match`, and checks them against its mode and ports.
fn read_protocols(s: &mut Section<'_>, mode: Mode) -> Vec<Protocol> {
    let stated = s.list("protocol", Protocols);
    let ports = ["sport", "dport"].into_iter().find(|key| s.has(key));
    let Some(stated) = stated else {
        return match ports {
            _ if mode.takes_flows() => vec![Protocol::TCP],
            Some(_) => vec![Protocol::TCP, Protocol::UDP],
            None => Vec::new(),
        };
    };
    let other = stated.iter().find(|protocol| **protocol != Protocol::TCP);
    if let Some(other) = other.filter(|_| mode.takes_flows()) {
        let message = format!(
            "`{other}` has no connections to split or to carry as streams; accepted: \"tcp\", or any \
             protocol with mode \"packet\", \"boost\", \"bypass\" or \"block\""
        );
        s.error("protocol", message);
    }
    let without = stated.iter().find(|protocol| !protocol.has_ports());
    if let (Some(without), Some(key)) = (without, ports) {
        let message = format!(
            "`{without}` has no ports, which need a `protocol` of tcp, udp, udplite, dccp or sctp; \
             write another site for other protocols"
        );
        s.error(key, message);
    }
    stated
}

impl Matcher {
    /// Reads `[site.match]` of a site of this mode; `lan` are the interfaces of hosts.
    pub(super) fn read(mut section: Section<'_>, mode: Mode, lan: &[IfName]) -> Self {
        let matcher = Self::read_keys(&mut section, mode);
        matcher.check_interfaces(&section, lan);
        section.finish();
        matcher
    }

    fn check_interfaces(&self, section: &Section<'_>, lan: &[IfName]) {
        if lan.is_empty() {
            return; // an error already, on which everything here depends
        }
        for name in self.interface.iter().filter(|name| !lan.contains(name)) {
            let known: Vec<_> = lan.iter().map(IfName::as_str).collect();
            section.error(
                "interface",
                format!(
                    "`{name}` is not in `intercept.lan`; accepted: {}",
                    known.join(", ")
                ),
            );
        }
    }

    /// Reports whether this is a multicast group, and the destinations name groups. A site that
    /// takes any destination, or a prefix that also has other addresses, does not count.
    pub fn names_group(&self, group: IpAddr) -> bool {
        let all = |base: IpAddr| match base {
            IpAddr::V4(_) => IpNet::new(Ipv4Addr::new(224, 0, 0, 0).into(), 4),
            IpAddr::V6(_) => IpNet::new(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0).into(), 8),
        };
        let is_of_groups = |net: &&IpNet| all(net.addr()).is_ok_and(|all| all.contains(*net));
        let mut groups = self.dst.iter().filter(is_of_groups);
        groups.any(|net| net.contains(&group))
    }

    /// Reports whether a flow belongs to the site.
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
