//! Reach of a peer: the hosts for which it may speak, and the destinations that it may reach.
//!
//! A peer states client and destination of its flows, and source and destination of its packets.
//! `from` and `to` of `[peer.NAME]` limit both. Location of an address is the kernel's answer, and
//! the caller's part.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use toml::de::DeValue;

use crate::{
    reading::values::Reading,
    site::{
        PacketEnds, PortRange,
        headers::{Ports, Prefix},
        may_be_host,
    },
};

/// Location of an address, as this machine routes packets to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// On this machine itself, or a broadcast or anycast address of one of its networks.
    Own,
    /// In a network attached to this machine, reached without a router.
    Attached,
    /// Behind a router.
    Elsewhere,
    /// Without a route.
    Nowhere,
    /// Unknown: the kernel has not answered.
    Unknown,
}

/// Extent of this machine's routes of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extent {
    /// To no other machine.
    Nowhere,
    /// To private networks attached to this machine only.
    Beside,
    /// To public networks, or behind a router.
    Beyond,
}

/// An entry of `to`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Everything that a peer without `to` may reach.
    Default,
    /// Addresses, and ports of protocols that have some.
    Net {
        /// The addresses.
        net: IpNet,
        /// The ports; every port if empty.
        ports: Vec<PortRange>,
    },
}

impl fmt::Display for Target {
    /// Writes the entry as in configurations.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (net, ports) = match self {
            Self::Default => return f.write_str(DEFAULT),
            Self::Net { net, ports } => (net, ports),
        };
        if ports.is_empty() {
            return write!(f, "{net}");
        }
        let ports: Vec<_> = ports.iter().map(ToString::to_string).collect();
        let ports = ports.join(",");
        match net {
            IpNet::V4(net) => write!(f, "{net}:{ports}"),
            IpNet::V6(net) => write!(f, "[{net}]:{ports}"),
        }
    }
}

/// Word for [`Target::Default`].
const DEFAULT: &str = "default";

/// Destinations: "default", or a prefix with or without ports.
pub(crate) struct Targets;

impl Targets {
    /// Splits an entry into its prefix, and its ports if it has some.
    fn split(text: &str) -> (&str, Option<&str>) {
        let in_brackets = || text.strip_prefix('[')?.split_once("]:");
        let of_v4 = || {
            text.split_once(':')
                .filter(|(_, ports)| !ports.contains(':'))
        };
        match in_brackets().or_else(of_v4) {
            Some((net, ports)) => (net, Some(ports)),
            None => (text, None),
        }
    }

    fn parse(text: &str) -> Result<Target, String> {
        let (net, ports) = Self::split(text);
        let net = Prefix::parse(net)?;
        let ports = ports.into_iter().flat_map(|ports| ports.split(','));
        let range = |text: &str| {
            Ports::parse(text).ok_or_else(|| format!("`{text}` is not {}", Ports.expected()))
        };
        let ports = ports.map(range).collect::<Result<_, _>>()?;
        Ok(Target::Net { net, ports })
    }
}

impl Reading for Targets {
    type Value = Target;

    fn expected(&self) -> String {
        "a destination such as \"10.0.0.0/8\", \"10.0.0.7:80,443\", \"[fd00::/8]:8000-8100\" or \"default\""
            .to_owned()
    }

    fn read(&self, value: &DeValue<'_>) -> Result<Target, String> {
        let text = self.text_of(value)?;
        if text == DEFAULT {
            return Ok(Target::Default);
        }
        let with_more = |error| format!("{error}; expected {}", self.expected());
        Self::parse(text).map_err(with_more)
    }
}

/// Ends of a flow, as a peer states them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The client.
    pub client: IpAddr,
    /// The destination.
    pub destination: SocketAddr,
    /// True if the server sees the client's address.
    pub as_client: bool,
    /// True if the flow's stream is compressed.
    pub compressed: bool,
}

/// Reason for which a peer may not open a flow. The text names the key that would permit it, if
/// there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Forbidden {
    /// No host can have the client's address.
    #[error("no host can have the client's address")]
    Client,
    /// The client's address is one of this machine.
    #[error("the client's address is one of this machine")]
    ClientOwn,
    /// The client is not in `from`.
    #[error("`from` of the peer does not have the client's address")]
    ClientOutside,
    /// The client is a host of another peer.
    #[error("the client's address is in `from` of another peer")]
    ClientOfOther,
    /// The server would take the client for a host beside this machine.
    #[error("the client's address is in a network of this machine; `from` of the peer permits it")]
    ClientAttached,
    /// No flow goes to such an address.
    #[error("no peer may reach loopback, link-local, mapped, multicast or broadcast addresses")]
    Destination,
    /// The destination is this machine.
    #[error(
        "the destination is this machine; an entry of `to` of the peer with that address permits it"
    )]
    Own,
    /// The destination is in a private network beside this machine.
    #[error("the destination is in a private network of this machine; `to` of the peer permits it")]
    Attached,
    /// The destination is a host of another peer.
    #[error("the destination is in `from` of another peer; `to` of the peer permits it")]
    OfOther,
    /// The destination is not in `to`.
    #[error("`to` of the peer does not have the destination")]
    Outside,
    /// The flow is compressed.
    #[error("it is compressed, and `compress` of the peer is false here: set it in both pepds")]
    Compressed,
    /// The kernel has not answered.
    #[error("the kernel does not tell whether an address is one of this machine")]
    Unknown,
}

/// Reach of one peer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reach {
    from: Option<Vec<IpNet>>,
    to: Option<Vec<Target>>,
    /// Networks of the hosts of all other peers.
    others: Vec<IpNet>,
    /// Compressed flows are refused.
    uncompressed: bool,
}

impl Reach {
    /// Creates the reach of a peer. `others` are the networks in `from` of all other peers. `None`
    /// is an absent key.
    pub fn new(from: Option<Vec<IpNet>>, to: Option<Vec<Target>>, others: Vec<IpNet>) -> Self {
        Self {
            from,
            to,
            others,
            uncompressed: false,
        }
    }

    /// Refuses compressed flows if `compress` is false.
    #[must_use]
    pub fn with_compression(self, compress: bool) -> Self {
        Self {
            uncompressed: !compress,
            ..self
        }
    }

    /// Decides whether the peer may open a flow. `place` locates an address.
    ///
    /// # Errors
    /// The reason for which it may not.
    pub fn check(
        &self,
        request: &Request,
        mut place: impl FnMut(IpAddr) -> Place,
    ) -> Result<(), Forbidden> {
        if request.compressed && self.uncompressed {
            return Err(Forbidden::Compressed);
        }
        let (client, destination) = (request.client, request.destination);
        if !is_usable(client) {
            return Err(Forbidden::Client);
        }
        if !is_usable(destination.ip()) {
            return Err(Forbidden::Destination);
        }
        self.check_client(client)?;
        let port = Some(destination.port());
        let named = self.named(destination.ip(), port);
        match place(client) {
            Place::Own => return Err(Forbidden::ClientOwn),
            Place::Unknown => return Err(Forbidden::Unknown),
            Place::Attached if request.as_client && self.from.is_none() => {
                return Err(Forbidden::ClientAttached);
            }
            Place::Attached | Place::Elsewhere | Place::Nowhere => {}
        }
        for address in [destination.ip()]
            .into_iter()
            .chain(embedded(destination.ip()))
        {
            self.check_destination(address, place(address), named)?;
        }
        Ok(())
    }

    /// Checks a destination, or an IPv4 address that a translator may make of it.
    fn check_destination(
        &self,
        address: IpAddr,
        place: Place,
        named: Option<Named>,
    ) -> Result<(), Forbidden> {
        match place {
            Place::Unknown => Err(Forbidden::Unknown),
            Place::Own if named == Some(Named::Exactly) => Ok(()),
            Place::Own => Err(Forbidden::Own),
            _ if named.is_some() => Ok(()),
            _ if !self.has_default() => Err(Forbidden::Outside),
            _ if self.is_of_other(address) => Err(Forbidden::OfOther),
            // Rules by source may lead to an attached network what else has no route.
            Place::Attached | Place::Nowhere if is_private(address) => Err(Forbidden::Attached),
            Place::Attached | Place::Elsewhere | Place::Nowhere => Ok(()),
        }
    }

    /// Decides whether a packet of the peer may go on to hosts. Attached networks need no `to`:
    /// answers to local hosts arrive this way, and sites limit them. Addresses of this machine are
    /// the packet filter's part.
    pub fn admits(&self, packet: &PacketEnds) -> bool {
        let PacketEnds { from, to, port } = *packet;
        let usable = is_usable(from) && (is_usable(to) || to.is_multicast());
        let named = || self.named(to, port).is_some();
        let is_of_other = |to| self.is_of_other(to);
        let by_default =
            || self.has_default() && !is_of_other(to) && !embedded(to).any(is_of_other);
        usable && self.check_client(from).is_ok() && (named() || by_default())
    }

    /// Decides whether the peer may report an error about a packet to this address: one of a host
    /// for which it speaks.
    pub fn admits_error_about(&self, to: IpAddr) -> bool {
        self.check_client(to).is_ok()
    }

    /// Checks the address of a host for which the peer speaks against `from` of all peers.
    fn check_client(&self, client: IpAddr) -> Result<(), Forbidden> {
        let own = self.from.as_deref().map(|from| longest(from, client));
        match own {
            Some(None) => Err(Forbidden::ClientOutside),
            _ if self.is_of_other(client) => Err(Forbidden::ClientOfOther),
            _ => Ok(()),
        }
    }

    /// Reports whether an address is a host of another peer. The longest prefix decides; peers with
    /// the same prefix share its hosts.
    fn is_of_other(&self, address: IpAddr) -> bool {
        let own = self.from.as_deref().and_then(|from| longest(from, address));
        longest(&self.others, address).is_some_and(|other| own.is_none_or(|own| own < other))
    }

    /// Returns whether the peer may reach any host of a family, IPv4 or IPv6, to whose hosts
    /// routes of this extent lead.
    pub fn has_any(&self, is_ipv4: bool, routes: Extent) -> bool {
        let is_of_family = |target: &Target| match target {
            Target::Default => false,
            Target::Net { net, .. } => net.addr().is_ipv4() == is_ipv4,
        };
        let is_named = self.to.iter().flatten().any(is_of_family);
        is_named && routes > Extent::Nowhere || self.has_default() && routes == Extent::Beyond
    }

    fn has_default(&self) -> bool {
        let to = self.to.as_deref();
        to.is_none_or(|to| to.contains(&Target::Default))
    }

    /// Returns how an entry of `to` names a destination, if one does.
    fn named(&self, address: IpAddr, port: Option<u16>) -> Option<Named> {
        let entries = self.to.iter().flatten();
        let of = |target: &Target| match target {
            Target::Net { net, ports } if net.contains(&address) => {
                let all = ports.is_empty();
                let here = port.is_none_or(|port| ports.iter().any(|range| range.contains(port)));
                let exactly = net.prefix_len() == net.max_prefix_len();
                let named = if exactly {
                    Named::Exactly
                } else {
                    Named::Within
                };
                (all || here).then_some(named)
            }
            _ => None,
        };
        entries.filter_map(of).max()
    }
}

/// Precision with which an entry of `to` names an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Named {
    /// By a network.
    Within,
    /// Alone.
    Exactly,
}

/// Returns the length of the longest of these prefixes that has the address.
fn longest(nets: &[IpNet], address: IpAddr) -> Option<u8> {
    let with = nets.iter().filter(|net| net.contains(&address));
    with.map(IpNet::prefix_len).max()
}

/// Reports whether a host elsewhere may have the address. IPv4-mapped addresses do not count: the
/// kernel would connect by IPv4. IPv4-compatible ones (RFC 4291 §2.5.5.1) include `::1`.
fn is_usable(address: IpAddr) -> bool {
    let in_words = match address {
        IpAddr::V4(address) => address.is_link_local() || address.octets()[0] == 0,
        IpAddr::V6(address) => address.is_unicast_link_local() || address.segments()[..5] == [0; 5],
    };
    may_be_host(address) && !in_words && embedded(address).all(is_usable)
}

/// Returns the IPv4 addresses to which a translator or a tunnel on the path may send packets for an
/// IPv6 address: NAT64 (RFC 6052, RFC 8215), stateless translation (RFC 2765) or 6to4 (RFC 3056).
///
/// `64:ff9b:1::/48` is for local use, so that only its operator knows the length of a translator's
/// prefix: 48, 56, 64 or 96 bits. An address there has up to four readings, and each must be
/// permitted. Bits after the IPv4 address count as well: translators need not check them.
/// Readings in `0.0.0.0/8` mostly consist of such bits, which are zero. They lead nowhere, and
/// do not count beside another one. A reading by the wrong length may forbid a public address;
/// addresses with a prefix of 96 bits that ends in zeros have one reading only.
fn embedded(address: IpAddr) -> impl Iterator<Item = IpAddr> {
    let (readings, count) = match address {
        IpAddr::V6(address) => readings(address),
        IpAddr::V4(_) => ([Ipv4Addr::UNSPECIFIED; 4], 0),
    };
    let is_zero = |address: &Ipv4Addr| address.octets()[0] == 0;
    let all_zero = readings[..count].iter().all(is_zero);
    let readings = readings.into_iter().take(count);
    let readings = readings.filter(move |reading| all_zero || !is_zero(reading));
    readings.map(IpAddr::V4)
}

/// Returns IPv4 addresses that an IPv6 address may stand for, and their number.
fn readings(address: Ipv6Addr) -> ([Ipv4Addr; 4], usize) {
    let octets = address.octets();
    let at = |places: [usize; 4]| Ipv4Addr::from(places.map(|place| octets[place]));
    let of_words = |high: u16, low: u16| {
        let address = Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
        ([address; 4], 1)
    };
    match address.segments() {
        // RFC 6052 section 2.2. The octet at 8 is not part of the IPv4 address.
        [0x64, 0xff9b, 1, ..] => (
            [
                at([6, 7, 9, 10]),
                at([7, 9, 10, 11]),
                at([9, 10, 11, 12]),
                at([12, 13, 14, 15]),
            ],
            4,
        ),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x2002, high, low, ..] => of_words(high, low),
        _ => ([Ipv4Addr::UNSPECIFIED; 4], 0),
    }
}

/// Private networks: RFC 1918, RFC 6598 and RFC 4193.
const PRIVATE_V4: [Ipv4Net; 4] = [
    Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 0, 0), 8),
    Ipv4Net::new_assert(Ipv4Addr::new(172, 16, 0, 0), 12),
    Ipv4Net::new_assert(Ipv4Addr::new(192, 168, 0, 0), 16),
    Ipv4Net::new_assert(Ipv4Addr::new(100, 64, 0, 0), 10),
];
const PRIVATE_V6: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7);

/// Returns whether an address is private (RFC 1918, RFC 6598, RFC 4193).
pub fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => PRIVATE_V4.iter().any(|net| net.contains(&address)),
        IpAddr::V6(address) => PRIVATE_V6.contains(&address),
    }
}

#[cfg(test)]
mod tests;
