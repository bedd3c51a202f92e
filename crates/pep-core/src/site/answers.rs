//! Admission of packets from a peer to a site: answers to packets that the site's own hosts may
//! send, and errors about those.
//!
//! Packets from a peer are untrusted. Without this check a peer could send anything to any host as
//! soon as one site takes packets.

use std::net::{IpAddr, SocketAddr};

use etherparse::{Ipv6ExtensionSlice, LaxIpSlice};

use super::{FlowKey, Matcher, Protocol};

/// Matcher of a site of mode `packet`, applied to return packets.
#[derive(Debug, Clone)]
pub struct Answers {
    matcher: Matcher,
    /// Matcher for fragments after the first, which have no ports.
    portless: Matcher,
}

impl Answers {
    /// Ignores DSCP and interface, as a packet and its answer may differ in both.
    pub fn new(matcher: &Matcher) -> Self {
        let matcher = Matcher {
            dscp: Vec::new(),
            interface: Vec::new(),
            ..matcher.clone()
        };
        let portless = Matcher {
            sport: Vec::new(),
            dport: Vec::new(),
            ..matcher.clone()
        };
        Self { matcher, portless }
    }

    /// Reports whether the site takes packets from `from` to `to`; `ports` is `None` where the
    /// packet has no ports.
    pub fn take(
        &self,
        protocol: Protocol,
        from: IpAddr,
        to: IpAddr,
        ports: Option<[u16; 2]>,
    ) -> bool {
        let matcher = match ports {
            Some(_) => &self.matcher,
            None => &self.portless,
        };
        let [sport, dport] = ports.unwrap_or_default();
        matcher.matches(&FlowKey {
            protocol,
            src: SocketAddr::new(from, sport),
            dst: SocketAddr::new(to, dport),
            dscp: 0,
            interface: "",
        })
    }

    /// Reports whether a packet from the peer answers one that the site takes, or is an ICMP error
    /// about one.
    pub fn admit(&self, packet: &[u8]) -> bool {
        let Some(packet) = Spoken::read(packet) else {
            return false;
        };
        match packet.message() {
            Message::Error(_) => self.admit_error(&packet),
            Message::OfRouters => false,
            Message::Other => {
                let back = packet.ports.map(|[from, to]| [to, from]);
                self.take(packet.protocol, packet.to, packet.from, back)
            }
        }
    }

    /// Reports whether a packet goes to a multicast group of the site, which hosts of either end
    /// may send to.
    pub fn admit_group(&self, packet: &[u8]) -> bool {
        let Some(packet) = Spoken::read(packet) else {
            return false;
        };
        crosses_routers(&packet)
            && self.matcher.names_group(packet.to)
            && self.take(packet.protocol, packet.from, packet.to, packet.ports)
    }

    fn admit_error(&self, packet: &Spoken<'_>) -> bool {
        let Message::Error(quoted) = packet.message() else {
            return false;
        };
        let Some(quoted) = Spoken::read(quoted) else {
            return false;
        };
        // Any router may send an error; it goes to the sender of the quoted packet.
        quoted.from == packet.to && self.take(quoted.protocol, quoted.from, quoted.to, quoted.ports)
    }
}

/// Ends of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketEnds {
    /// Source address.
    pub from: IpAddr,
    /// Destination address.
    pub to: IpAddr,
    /// Destination port; `None` for protocols without ports and for fragments after the first.
    pub port: Option<u16>,
}

/// Reports whether a packet for a group is for more than one link: neither the group (RFC 5771,
/// section 4; RFC 7346, section 2) nor its protocol is of one link, such as IGMP and MLD.
fn crosses_routers(packet: &Spoken<'_>) -> bool {
    let is_of_link = match packet.to {
        IpAddr::V4(group) => group.octets()[..3] == [224, 0, 0],
        IpAddr::V6(group) => group.octets()[1] & 0x0f <= 2,
    };
    let kind = packet.payload.first().copied();
    let is_of_routers = match packet.protocol {
        Protocol(2) => true,
        Protocol::ICMPV6 => kind.is_none_or(|kind| (130..=143).contains(&kind)),
        _ => false,
    };
    !is_of_link && !is_of_routers
}

impl PacketEnds {
    /// Reads the beginning of the packet that an ICMP error quotes; `None` for other packets.
    pub fn read_quoted(packet: &[u8]) -> Option<Self> {
        match Spoken::read(packet)?.message() {
            Message::Error(quoted) => Self::read(quoted),
            _ => None,
        }
    }

    /// Reads the headers of a packet; `None` where they are malformed.
    pub fn read(packet: &[u8]) -> Option<Self> {
        let packet = Spoken::read(packet)?;
        let ports = packet.ports.filter(|_| packet.protocol.has_ports());
        Some(Self {
            from: packet.from,
            to: packet.to,
            port: ports.map(|[_, to]| to),
        })
    }
}

/// Extension headers, which hide what comes after them where they are cut off. A first fragment has
/// them whole (RFC 7112, section 5).
const EXTENSIONS: [u8; 5] = [0, 43, 44, 51, 60];

/// Header fields of a packet, or of the beginning that an error quotes.
#[derive(Debug)]
struct Spoken<'a> {
    protocol: Protocol,
    from: IpAddr,
    to: IpAddr,
    /// `None` in fragments after the first; 0 where the protocol has none.
    ports: Option<[u16; 2]>,
    /// True for a whole packet or the first fragment.
    is_first: bool,
    payload: &'a [u8],
}

impl<'a> Spoken<'a> {
    /// Returns `None` where the packet is malformed.
    fn read(packet: &'a [u8]) -> Option<Self> {
        let (ip, _) = LaxIpSlice::from_slice(packet).ok()?;
        let payload = ip.payload();
        let protocol = Protocol(payload.ip_number.0);
        if EXTENSIONS.contains(&protocol.0) {
            return None;
        }
        let is_first = is_first(&ip);
        let ports = match payload.payload {
            _ if !is_first => None,
            [a, b, c, d, ..] if protocol.has_ports() => {
                Some([u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d])])
            }
            _ if protocol.has_ports() => return None,
            _ => Some([0; 2]),
        };
        Some(Self {
            protocol,
            from: ip.source_addr(),
            to: ip.destination_addr(),
            ports,
            is_first,
            payload: payload.payload,
        })
    }

    /// Classifies an ICMP packet. Messages from routers to their own hosts (redirects,
    /// advertisements, solicitations, neighbours' addresses) come by no tunnel: a peer is not a
    /// router on a LAN.
    fn message(&self) -> Message<'a> {
        let (errors, of_routers): (&[u8], &[u8]) = match self.protocol {
            Protocol::ICMP => (&[3, 11, 12], &[5, 9, 10]),
            Protocol::ICMPV6 => (&[1, 2, 3, 4], &[133, 134, 135, 136, 137]),
            _ => return Message::Other,
        };
        match self.payload.first().filter(|_| self.is_first) {
            Some(kind) if errors.contains(kind) => {
                Message::Error(self.payload.get(8..).unwrap_or_default())
            }
            Some(kind) if of_routers.contains(kind) => Message::OfRouters,
            _ => Message::Other,
        }
    }
}

/// Kind of ICMP message in a packet.
#[derive(Debug)]
enum Message<'a> {
    /// Error that quotes the beginning of a packet.
    Error(&'a [u8]),
    /// Router or neighbour message, which is local to a link.
    OfRouters,
    /// Any other packet.
    Other,
}

fn is_first(ip: &LaxIpSlice<'_>) -> bool {
    match ip {
        LaxIpSlice::Ipv4(ip) => ip.header().fragments_offset().value() == 0,
        LaxIpSlice::Ipv6(ip) => {
            let mut extensions = ip.extensions().clone().into_iter();
            extensions.all(|extension| match extension {
                Ipv6ExtensionSlice::Fragment(fragment) => fragment.fragment_offset().value() == 0,
                _ => true,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use etherparse::{Icmpv4Type, PacketBuilder, icmpv4};

    use super::*;
    use crate::site::PortRange;

    const HOST: [u8; 4] = [10, 1, 0, 2];
    const FAR: [u8; 4] = [203, 0, 113, 5];

    fn answers() -> Answers {
        Answers::new(&Matcher {
            protocol: vec![Protocol::UDP],
            src: vec!["10.1.0.0/16".parse().unwrap()],
            dport: vec![PortRange::single(5060)],
            dscp: vec![46],
            ..Matcher::default()
        })
    }

    fn udp(from: ([u8; 4], u16), to: ([u8; 4], u16)) -> Vec<u8> {
        let mut packet = Vec::new();
        let builder = PacketBuilder::ipv4(from.0, to.0, 64).udp(from.1, to.1);
        builder.write(&mut packet, &[7; 32]).unwrap();
        packet
    }

    fn error(to: [u8; 4], about: &[u8]) -> Vec<u8> {
        let unreachable = Icmpv4Type::DestinationUnreachable(icmpv4::DestUnreachableHeader::Port);
        let mut packet = Vec::new();
        let builder = PacketBuilder::ipv4([192, 0, 2, 9], to, 64).icmpv4(unreachable);
        builder.write(&mut packet, about).unwrap();
        packet
    }

    #[test]
    fn only_what_answers_a_site_is_admitted() {
        let answers = answers();
        assert!(answers.admit(&udp((FAR, 5060), (HOST, 7000))));
        for (from, to) in [
            ((FAR, 5061), (HOST, 7000)),
            ((FAR, 7000), (HOST, 5060)),
            ((FAR, 5060), (FAR, 7000)),
            ((HOST, 7000), (FAR, 5060)),
        ] {
            assert!(!answers.admit(&udp(from, to)), "{from:?} {to:?}");
        }
        for cut in 0..24 {
            assert!(!answers.admit(&udp((FAR, 5060), (HOST, 7000))[..cut]));
        }
    }

    #[test]
    fn groups_of_one_link_and_messages_of_its_routers_are_not_admitted() {
        let all = |net: &str| {
            Answers::new(&Matcher {
                dst: vec![net.parse().unwrap()],
                ..Matcher::default()
            })
        };
        let v4 = all("224.0.0.0/4");
        assert!(v4.admit_group(&udp((HOST, 7000), ([239, 1, 2, 3], 5004))));
        for link in [[224, 0, 0, 1], [224, 0, 0, 251]] {
            assert!(!v4.admit_group(&udp((HOST, 5353), (link, 5353))));
        }
        let mut igmp = udp((HOST, 7000), ([239, 1, 2, 3], 5004));
        igmp[9] = 2;
        assert!(!v4.admit_group(&igmp));
        let v6 = all("ff00::/8");
        let to = |scope: u8, kind: Option<u8>| {
            let mut group = [0; 16];
            (group[0], group[1], group[15]) = (0xff, scope, 9);
            let builder = PacketBuilder::ipv6([1; 16], group, 64);
            let mut packet = Vec::new();
            match kind {
                None => builder.udp(7000, 5004).write(&mut packet, &[7; 8]),
                Some(kind) => builder.icmpv6_raw(kind, 0, [0; 4]).write(&mut packet, &[]),
            }
            .unwrap();
            packet
        };
        assert!(v6.admit_group(&to(0x0e, None)) && v6.admit_group(&to(5, Some(128))));
        for (scope, kind) in [
            (1, None),
            (2, None),
            (0x12, None),
            (5, Some(130)),
            (5, Some(134)),
        ] {
            assert!(!v6.admit_group(&to(scope, kind)), "{scope} {kind:?}");
        }
    }

    #[test]
    fn fragments_behind_the_first_go_by_their_addresses() {
        let answers = answers();
        let fragment = |mut packet: Vec<u8>, offset: u8| {
            packet[6..8].copy_from_slice(&[0x20, offset]);
            packet
        };
        assert!(answers.admit(&fragment(udp((FAR, 5060), (HOST, 7000)), 0)));
        assert!(!answers.admit(&fragment(udp((FAR, 1), (HOST, 7000)), 0)));
        assert!(answers.admit(&fragment(udp((FAR, 1), (HOST, 7000)), 2)));
        assert!(!answers.admit(&fragment(udp((FAR, 1), (FAR, 7000)), 2)));
    }

    #[test]
    fn later_fragments_of_ipv6_too() {
        let all = Answers::new(&Matcher {
            protocol: vec![Protocol::UDP],
            dport: vec![PortRange::single(5060)],
            ..Matcher::default()
        });
        let mut packet = Vec::new();
        let builder = PacketBuilder::ipv6([1; 16], [2; 16], 64).udp(5061, 7000);
        builder.write(&mut packet, &[7; 32]).unwrap();
        assert!(!all.admit(&packet));
        let with = |offset: u8| {
            let header = [17, 0, 0, offset << 3, 0, 0, 0, 9];
            let mut cut = [&packet[..40], &header, &packet[40..]].concat();
            cut[6] = 44;
            cut[5] += 8;
            cut
        };
        assert!(!all.admit(&with(0)));
        assert!(all.admit(&with(3)));
        // A first fragment that ends within its headers hides its ports.
        let any = Answers::new(&Matcher::default());
        let hiding = |header: u8| {
            let mut cut = with(0);
            (cut[40], cut[43], cut[5]) = (header, 1, 8 + 8);
            cut[48..56].copy_from_slice(&[header, 1, 0, 0, 0, 0, 0, 0]);
            cut.truncate(56);
            cut
        };
        assert!(any.admit(&hiding(17)));
        assert!(!any.admit(&hiding(60)) && PacketEnds::read(&hiding(60)).is_none());
    }

    #[test]
    fn errors_about_what_a_site_takes_are_admitted_from_anywhere() {
        let answers = answers();
        let sent = udp((HOST, 7000), (FAR, 5060));
        assert!(answers.admit(&error(HOST, &sent)));
        let quoted = PacketEnds::read_quoted(&error(HOST, &sent));
        assert_eq!(quoted.map(|ends| ends.to), Some(FAR.into()));
        assert_eq!(PacketEnds::read_quoted(&sent), None);
        // Minimum quotation of a router (RFC 792).
        assert!(answers.admit(&error(HOST, &sent[..28])));
        assert!(!answers.admit(&error(HOST, &sent[..20])));
        assert!(!answers.admit(&error([10, 1, 0, 3], &sent)), "to another");
        assert!(!answers.admit(&error(HOST, &udp((HOST, 7000), (FAR, 53)))));
        let mut redirect = error(HOST, &sent);
        redirect[20] = 5;
        assert!(!answers.admit(&redirect));
        // A site of ICMP takes echoes, not router messages; for errors it also has to take the
        // quoted packet.
        let pings = Answers::new(&Matcher {
            protocol: vec![Protocol::ICMP, Protocol::ICMPV6],
            src: vec!["10.1.0.0/16".parse().unwrap()],
            ..Matcher::default()
        });
        for kind in [5, 9, 10] {
            redirect[20] = kind;
            assert!(!pings.admit(&redirect), "{kind}");
        }
        redirect[20] = 0;
        assert!(pings.admit(&redirect), "an answer");
        assert!(!pings.admit(&error(HOST, &sent)));
        let mut ping = sent.clone();
        ping[9] = 1;
        assert!(pings.admit(&error(HOST, &ping)));
    }
}
