//! Parser of client SYNs in IP packets, and a network's answers to those that fail.

use std::net::{IpAddr, SocketAddr};

use etherparse::{
    IpHeaders, NetSlice, PacketBuilder, PacketBuilderStep, SlicedPacket, TcpSlice, TransportSlice,
    checksum::Sum16BitWords,
};

use super::FlowTuple;

/// Maximum size of a held SYN. Longer ones carry data for TCP Fast Open, or attack pepd's memory.
pub const SYN_BYTES_MAX: usize = 1280;

/// TTL or hop limit of forged packets, as in Linux.
const HOP_LIMIT: u8 = 64;

/// An ICMP error fits into 576 bytes (RFC 1812, 4.3.2.3), headers (20 + 8) included.
const ICMPV4_QUOTE_MAX: usize = 576 - 28;

/// An ICMPv6 error fits into 1280 bytes (RFC 4443, 2.4), headers (40 + 8) included.
const ICMPV6_QUOTE_MAX: usize = 1280 - 48;

/// A SYN that can be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Syn {
    /// Addresses and ports.
    pub flow: FlowTuple,
    /// DSCP, 0 to 63.
    pub dscp: u8,
    /// Sequence number.
    pub sequence: u32,
    /// Bytes of data in the SYN.
    pub data_len: u32,
}

/// Result of parsing a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parsed {
    /// A SYN that can be held.
    Syn(Syn),
    /// Cannot be held; to be forwarded unchanged to this address.
    Pass(IpAddr),
    /// Not sent through pepd by a host: multicast, or not IP.
    Noise,
}

/// Parses a packet that starts with its IP header.
///
/// Only a whole TCP segment is held, with SYN and without FIN, RST or ACK, in an IP packet that is
/// not a fragment and has no IPv6 extension headers.
pub fn parse(packet: &[u8]) -> Parsed {
    let Ok(sliced) = SlicedPacket::from_ip(packet) else {
        return not_held(packet);
    };
    match held(packet, &sliced) {
        Some(syn) => Parsed::Syn(syn),
        None => not_held(packet),
    }
}

fn held(packet: &[u8], sliced: &SlicedPacket<'_>) -> Option<Syn> {
    let (source, destination, dscp) = addresses(packet, sliced)?;
    let Some(TransportSlice::Tcp(tcp)) = &sliced.transport else {
        return None;
    };
    if packet.len() > SYN_BYTES_MAX || !is_pure_syn(tcp) || !is_host(destination) {
        return None;
    }
    Some(Syn {
        flow: FlowTuple {
            client: SocketAddr::new(source, tcp.source_port()),
            destination: SocketAddr::new(destination, tcp.destination_port()),
        },
        dscp,
        sequence: tcp.sequence_number(),
        data_len: u32::try_from(tcp.payload().len()).ok()?,
    })
}

/// Returns source, destination and DSCP of a packet that is no fragment, has no extension headers,
/// and ends where its IP header says.
fn addresses(packet: &[u8], sliced: &SlicedPacket<'_>) -> Option<(IpAddr, IpAddr, u8)> {
    if sliced.is_ip_payload_fragmented() {
        return None;
    }
    match sliced.net.as_ref()? {
        NetSlice::Ipv4(ip) => {
            let header = ip.header();
            let whole = usize::from(header.total_len()) == packet.len();
            (whole && ip.extensions().is_empty()).then(|| {
                let source = header.source_addr().into();
                (
                    source,
                    header.destination_addr().into(),
                    header.dcp().value(),
                )
            })
        }
        NetSlice::Ipv6(ip) => {
            let header = ip.header();
            let whole = 40 + usize::from(header.payload_length()) == packet.len();
            (whole && ip.extensions().is_empty()).then(|| {
                let source = header.source_addr().into();
                (
                    source,
                    header.destination_addr().into(),
                    header.dscp().value(),
                )
            })
        }
        NetSlice::Arp(_) => None,
    }
}

fn is_pure_syn(tcp: &TcpSlice<'_>) -> bool {
    tcp.syn() && !tcp.ack() && !tcp.rst() && !tcp.fin()
}

/// Reports whether a single machine may have the address.
fn is_host(address: IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !(address.is_multicast() || address.is_unspecified() || broadcast)
}

/// Passes on every packet whose destination may be a single machine; the kernel checks further.
fn not_held(packet: &[u8]) -> Parsed {
    match destination(packet) {
        Some(address) if is_host(address) => Parsed::Pass(address),
        _ => Parsed::Noise,
    }
}

fn destination(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => Some(<[u8; 4]>::try_from(packet.get(16..20)?).ok()?.into()),
        6 => Some(<[u8; 16]>::try_from(packet.get(24..40)?).ok()?.into()),
        _ => None,
    }
}

/// Returns a closed port's answer: `<SEQ=0><ACK=SEG.SEQ+SEG.LEN><CTL=RST,ACK>` (RFC 9293,
/// 3.10.7.1).
pub fn reset(syn: &Syn) -> Vec<u8> {
    let FlowTuple {
        client,
        destination,
    } = syn.flow;
    // SYN counts as one byte (RFC 9293, 3.4).
    let acknowledgment = syn.sequence.wrapping_add(1).wrapping_add(syn.data_len);
    let segment = ip(destination.ip(), client.ip())
        .tcp(destination.port(), client.port(), 0, 0)
        .rst()
        .ack(acknowledgment);
    let mut packet = Vec::with_capacity(segment.size(0));
    let written = segment.write(&mut packet, &[]);
    written.expect("a header of fixed length fits");
    packet
}

/// Offset of the checksum in a TCP header.
const CHECKSUM: usize = 16;

/// Completes the TCP checksum of a packet that a machine without a network card has sent: it has
/// that of the pseudo header only. Returns false for a packet that is cut, is no whole TCP segment,
/// or whose checksum is wrong.
pub fn complete(packet: &mut [u8]) -> bool {
    let Some(sums) = checksums(packet) else {
        return false;
    };
    let is_partial = sums.stated == sums.of_pseudo_header;
    if is_partial {
        let at = packet.len() - sums.segment_bytes + CHECKSUM;
        packet[at..at + 2].copy_from_slice(&sums.right.to_be_bytes());
    }
    is_partial || sums.stated == sums.right
}

/// Checksums of a TCP segment.
struct Checksums {
    stated: u16,
    right: u16,
    of_pseudo_header: u16,
    segment_bytes: usize,
}

fn checksums(packet: &[u8]) -> Option<Checksums> {
    let sliced = SlicedPacket::from_ip(packet).ok()?;
    let Some(TransportSlice::Tcp(tcp)) = &sliced.transport else {
        return None;
    };
    let mut sum = Sum16BitWords::new();
    let sum = match sliced.net.as_ref()? {
        NetSlice::Ipv4(ip) => {
            let (from, to) = (ip.header().source(), ip.header().destination());
            sum.add_4bytes(from).add_4bytes(to)
        }
        NetSlice::Ipv6(ip) => {
            let (from, to) = (ip.header().source(), ip.header().destination());
            sum.add_16bytes(from).add_16bytes(to)
        }
        NetSlice::Arp(_) => return None,
    };
    let segment = tcp.slice();
    let length = u16::try_from(segment.len()).ok()?;
    let sum = sum.add_2bytes([0, 6]).add_2bytes(length.to_be_bytes());
    let of_pseudo_header = !sum.ones_complement().to_be();
    let (before, rest) = segment.split_at_checked(CHECKSUM)?;
    let sum = sum.add_slice(before).add_slice(rest.get(2..)?);
    Some(Checksums {
        stated: tcp.checksum(),
        right: sum.ones_complement().to_be(),
        of_pseudo_header,
        segment_bytes: segment.len(),
    })
}

/// Returns the segment by which `from` aborts a connection with this sequence number:
/// `<SEQ><CTL=RST>` (RFC 9293, 3.10.7.4).
///
/// # Panics
/// When the addresses are of different families.
pub(crate) fn abort(from: SocketAddr, to: SocketAddr, sequence: u32) -> Vec<u8> {
    let segment = ip(from.ip(), to.ip())
        .tcp(from.port(), to.port(), sequence, 0)
        .rst();
    let mut packet = Vec::with_capacity(segment.size(0));
    let written = segment.write(&mut packet, &[]);
    written.expect("a header of fixed length fits");
    packet
}

/// An ICMP error, as received for pepd's connection attempt, or as a router would send it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IcmpError {
    /// The router or host that reports it.
    pub from: IpAddr,
    /// ICMP or ICMPv6 type.
    pub kind: u8,
    /// Code.
    pub code: u8,
    /// Second word of the header, which some codes use.
    pub info: u32,
}

/// Reason why this machine cannot send to a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreachable {
    /// No route.
    Network,
    /// Route of type unreachable.
    Host,
    /// No ARP or neighbour discovery answer from the next hop.
    Neighbour,
    /// Route of type prohibit.
    Prohibited,
}

impl IcmpError {
    /// Returns the error that Linux, as a router at `from`, sends for this reason.
    ///
    /// IPv4: net unreachable, host unreachable, packet filtered (RFC 1812, 5.2.7.1). IPv6: no
    /// route, which Linux sends for unreachable routes too, address unreachable, administratively
    /// prohibited (RFC 4443, 3.1).
    pub fn from_router(from: IpAddr, why: Unreachable) -> Self {
        let (kind, code) = match (from, why) {
            (IpAddr::V4(_), Unreachable::Network) => (3, 0),
            (IpAddr::V4(_), Unreachable::Host | Unreachable::Neighbour) => (3, 1),
            (IpAddr::V4(_), Unreachable::Prohibited) => (3, 13),
            (IpAddr::V6(_), Unreachable::Network | Unreachable::Host) => (1, 0),
            (IpAddr::V6(_), Unreachable::Neighbour) => (1, 3),
            (IpAddr::V6(_), Unreachable::Prohibited) => (1, 1),
        };
        Self {
            from,
            kind,
            code,
            info: 0,
        }
    }
}

/// Returns the error as the client would get it: quoting the client's own SYN, whose sequence
/// number its TCP checks. `None` when the error is of another family than the SYN.
pub fn icmp(error: &IcmpError, syn: &[u8], client: IpAddr) -> Option<Vec<u8>> {
    if error.from.is_ipv4() != client.is_ipv4() {
        return None;
    }
    let (kind, code, info) = (error.kind, error.code, error.info.to_be_bytes());
    let header = ip(error.from, client);
    let mut packet = Vec::with_capacity(48 + syn.len());
    let written = if client.is_ipv4() {
        let quote = &syn[..syn.len().min(ICMPV4_QUOTE_MAX)];
        header
            .icmpv4_raw(kind, code, info)
            .write(&mut packet, quote)
    } else {
        let quote = &syn[..syn.len().min(ICMPV6_QUOTE_MAX)];
        header
            .icmpv6_raw(kind, code, info)
            .write(&mut packet, quote)
    };
    written.expect("a quote of bounded length fits");
    Some(packet)
}

/// An IP header.
///
/// # Panics
/// When the addresses are of different families.
fn ip(from: IpAddr, to: IpAddr) -> PacketBuilderStep<IpHeaders> {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            PacketBuilder::ipv4(from.octets(), to.octets(), HOP_LIMIT)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            PacketBuilder::ipv6(from.octets(), to.octets(), HOP_LIMIT)
        }
        _ => panic!("from {from} to {to}"),
    }
}

#[cfg(test)]
#[path = "packet_tests.rs"]
mod tests;
