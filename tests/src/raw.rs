//! Crafted packets, forged ICMP errors, and captures of the packets on a machine's interfaces.

use std::{
    io::{self, Read as _},
    net::{IpAddr, SocketAddr},
};

use etherparse::{
    Icmpv4Type, Icmpv6Type, IpHeaders, NetSlice, PacketBuilder, PacketBuilderStep, SlicedPacket,
    TransportSlice, icmpv4::DestUnreachableHeader, icmpv6::DestUnreachableCode,
};
use nix::errno::Errno;
use socket2::{Domain, Protocol, Socket, Type};

use crate::host::Host;

/// A TCP packet without data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Source address and port.
    pub from: SocketAddr,
    /// Destination address and port.
    pub to: SocketAddr,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement number, if ACK is set.
    pub ack: Option<u32>,
    /// True if SYN is set.
    pub syn: bool,
    /// True if RST is set.
    pub rst: bool,
    /// The kind of its first option, if any.
    pub option: Option<u8>,
    /// TTL or hop limit.
    pub hops: u8,
}

/// The default TTL.
const HOPS: u8 = 64;

impl Segment {
    /// Returns a SYN.
    pub const fn opening(from: SocketAddr, to: SocketAddr) -> Self {
        Self {
            from,
            to,
            sequence: 1,
            ack: None,
            syn: true,
            rst: false,
            option: None,
            hops: HOPS,
        }
    }

    /// Returns the ACK with which the sender of a SYN answers this SYN-ACK.
    ///
    /// # Panics
    /// When this is no SYN-ACK.
    #[must_use]
    pub fn answer(&self) -> Self {
        let expected = self.ack.filter(|_| self.syn).expect("a SYN-ACK");
        Self {
            from: self.to,
            to: self.from,
            sequence: expected,
            ack: Some(self.sequence.wrapping_add(1)),
            syn: false,
            rst: false,
            option: None,
            hops: HOPS,
        }
    }

    /// Returns the packet with its IP header.
    ///
    /// # Panics
    /// When the addresses are of different families.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let (from, to) = (self.from.port(), self.to.port());
        let mut step =
            ip(self.from.ip(), self.to.ip(), self.hops).tcp(from, to, self.sequence, u16::MAX);
        if self.syn {
            step = step.syn();
        }
        if self.rst {
            step = step.rst();
        }
        if let Some(ack) = self.ack {
            step = step.ack(ack);
        }
        if let Some(kind) = self.option {
            let option = step.options_raw(&[kind, 4, 0, 0]);
            step = option.expect("four bytes fit");
        }
        let mut bytes = Vec::new();
        let written = step.write(&mut bytes, &[]);
        written.expect("a packet without data is short enough");
        bytes
    }

    /// Parses a TCP packet without data; `None` for others.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let packet = SlicedPacket::from_ip(bytes).ok()?;
        let (source, destination, hops): (IpAddr, IpAddr, u8) = match packet.net? {
            NetSlice::Ipv4(ip) => {
                let header = ip.header();
                let addresses = (header.source_addr(), header.destination_addr());
                (addresses.0.into(), addresses.1.into(), header.ttl())
            }
            NetSlice::Ipv6(ip) => {
                let header = ip.header();
                let addresses = (header.source_addr(), header.destination_addr());
                (addresses.0.into(), addresses.1.into(), header.hop_limit())
            }
            _ => return None,
        };
        let Some(TransportSlice::Tcp(tcp)) = packet.transport else {
            return None;
        };
        Some(Self {
            from: SocketAddr::new(source, tcp.source_port()),
            to: SocketAddr::new(destination, tcp.destination_port()),
            sequence: tcp.sequence_number(),
            ack: tcp.ack().then(|| tcp.acknowledgment_number()),
            syn: tcp.syn(),
            rst: tcp.rst(),
            option: tcp.options().first().copied(),
            hops,
        })
    }
}

fn ip(from: IpAddr, to: IpAddr, hops: u8) -> PacketBuilderStep<IpHeaders> {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => PacketBuilder::ipv4(from.octets(), to.octets(), hops),
        (IpAddr::V6(from), IpAddr::V6(to)) => PacketBuilder::ipv6(from.octets(), to.octets(), hops),
        (from, to) => panic!("from {from} to {to}"),
    }
}

/// Returns an empty UDP datagram with its IP header.
///
/// # Panics
/// When the addresses are of different families.
#[must_use]
pub fn datagram(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let mut bytes = Vec::new();
    let step = ip(from.ip(), to.ip(), HOPS).udp(from.port(), to.port());
    step.write(&mut bytes, &[]).expect("it is short");
    bytes
}

/// The message of an ICMP error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Error {
    /// No route to the host, or no such host.
    Host,
    /// No socket has the port.
    Port,
    /// A filter prohibits the packet.
    Prohibited,
    /// The packet is longer than this MTU of the next hop.
    TooBig(u16),
}

/// Returns an ICMP error of a router about a packet, to the sender of that packet.
///
/// # Panics
/// When the router has an address of another family.
#[must_use]
pub fn error(router: IpAddr, error: Error, sender: IpAddr, packet: &[u8]) -> Vec<u8> {
    let step = ip(router, sender, HOPS);
    let mut bytes = Vec::new();
    let written = match router {
        IpAddr::V4(_) => {
            let what = match error {
                Error::Host => DestUnreachableHeader::Host,
                Error::Port => DestUnreachableHeader::Port,
                Error::Prohibited => DestUnreachableHeader::FilterProhibited,
                Error::TooBig(next_hop_mtu) => {
                    DestUnreachableHeader::FragmentationNeeded { next_hop_mtu }
                }
            };
            let what = Icmpv4Type::DestinationUnreachable(what);
            step.icmpv4(what).write(&mut bytes, packet)
        }
        IpAddr::V6(_) => {
            let what = |code| Icmpv6Type::DestinationUnreachable(code);
            let what = match error {
                Error::Host => what(DestUnreachableCode::NoRoute),
                Error::Port => what(DestUnreachableCode::Port),
                Error::Prohibited => what(DestUnreachableCode::Prohibited),
                Error::TooBig(mtu) => Icmpv6Type::PacketTooBig { mtu: mtu.into() },
            };
            step.icmpv6(what).write(&mut bytes, packet)
        }
    };
    written.expect("it is short");
    bytes
}

/// Sends a packet to a neighbour, regardless of its addresses.
///
/// # Panics
/// When the kernel does not send it.
pub fn send(host: &Host, next_hop: IpAddr, segment: &Segment) {
    let next_hop = SocketAddr::new(next_hop, 0);
    let send = || -> io::Result<usize> {
        let raw = Protocol::from(libc::IPPROTO_RAW);
        let socket = Socket::new(Domain::for_address(next_hop), Type::RAW, Some(raw))?;
        socket.send_to(&segment.bytes(), &next_hop.into())
    };
    let sent = host.enter(send);
    sent.unwrap_or_else(|error| panic!("cannot send {segment:?}: {error}"));
}

/// Sends a packet with a wrong TCP checksum to a neighbour: the kernel drops it after all rules.
///
/// # Panics
/// When the kernel does not send it.
pub fn send_damaged(host: &Host, next_hop: IpAddr, segment: &Segment) {
    let next_hop = SocketAddr::new(next_hop, 0);
    let send = || -> io::Result<usize> {
        let raw = Protocol::from(libc::IPPROTO_RAW);
        let socket = Socket::new(Domain::for_address(next_hop), Type::RAW, Some(raw))?;
        let mut bytes = segment.bytes();
        let tcp = if next_hop.is_ipv4() { 20 } else { 40 };
        bytes[tcp + 16] ^= 0x55;
        socket.send_to(&bytes, &next_hop.into())
    };
    let sent = host.enter(send);
    sent.unwrap_or_else(|error| panic!("cannot send {segment:?}: {error}"));
}

/// Sends many packets to a neighbour, as [`send`] does one; drops those for which the interface has
/// no room. Returns the number sent.
///
/// # Panics
/// When the kernel provides no socket.
pub fn flood(host: &Host, next_hop: IpAddr, segments: impl Iterator<Item = Segment> + Send) -> u64 {
    send_all(host, next_hop, segments.map(|segment| segment.bytes()))
}

/// Sends packets with their IP headers to a neighbour, as [`flood`] does.
///
/// # Panics
/// When the kernel provides no socket.
pub fn send_all(
    host: &Host,
    next_hop: IpAddr,
    packets: impl Iterator<Item = Vec<u8>> + Send,
) -> u64 {
    let next_hop = SocketAddr::new(next_hop, 0);
    let flood = || -> io::Result<u64> {
        let raw = Protocol::from(libc::IPPROTO_RAW);
        let socket = Socket::new(Domain::for_address(next_hop), Type::RAW, Some(raw))?;
        let sent = packets.filter(|packet| {
            let sent = socket.send_to(packet, &next_hop.into());
            sent.is_ok()
        });
        Ok(sent.count() as u64)
    };
    host.enter(flood).expect("root may send raw packets")
}

/// A capture of whole packets on a machine's interfaces, before any of its filters.
#[derive(Debug)]
pub struct Packets(Socket);

impl Packets {
    /// Starts capturing.
    ///
    /// # Panics
    /// Without CAP_NET_RAW.
    pub fn new(host: &Host) -> Self {
        let listen = || -> io::Result<Socket> {
            let all = u16::try_from(libc::ETH_P_ALL).expect("two bytes").to_be();
            let all = Protocol::from(i32::from(all));
            // Without their Ethernet headers.
            let socket = Socket::new(Domain::PACKET, Type::DGRAM, Some(all))?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        Self(host.enter(listen).expect("root may listen"))
    }
}

/// Captured packets; ends when there is none yet.
impl Iterator for &Packets {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let mut buffer = vec![0; 65_536];
        match (&self.0).read(&mut buffer) {
            Ok(len) => buffer.truncate(len),
            Err(error) if is_empty(&error) => return None,
            Err(error) => panic!("cannot listen: {error}"),
        }
        Some(buffer)
    }
}

/// A capture of TCP packets without data.
#[derive(Debug)]
pub struct Wire {
    packets: Packets,
    seen: Vec<Segment>,
}

impl Wire {
    /// Starts capturing.
    ///
    /// # Panics
    /// Without CAP_NET_RAW.
    pub fn new(host: &Host) -> Self {
        Self {
            packets: Packets::new(host),
            seen: Vec::new(),
        }
    }

    /// Returns the first matching TCP packet so far.
    ///
    /// # Panics
    /// When the kernel fails.
    pub fn find(&mut self, wanted: impl Fn(&Segment) -> bool) -> Option<Segment> {
        self.look();
        self.seen.iter().copied().find(|segment| wanted(segment))
    }

    /// Returns the last matching TCP packet so far.
    ///
    /// # Panics
    /// When the kernel fails.
    pub fn last(&mut self, wanted: impl Fn(&Segment) -> bool) -> Option<Segment> {
        self.look();
        let mut latest = self.seen.iter().rev().copied();
        latest.find(|segment| wanted(segment))
    }

    fn look(&mut self) {
        let seen = self
            .packets
            .into_iter()
            .filter_map(|bytes| Segment::parse(&bytes));
        self.seen.extend(seen);
    }
}

fn is_empty(error: &io::Error) -> bool {
    error.raw_os_error().map(Errno::from_raw) == Some(Errno::EAGAIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(from: &str, to: &str) -> Segment {
        let address = |text: &str| text.parse().expect("an address");
        Segment::opening(address(from), address(to))
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        for syn in [
            segment("10.0.0.1:1", "127.0.0.1:2"),
            segment("[fd00::1]:1", "[::ffff:127.0.0.1]:2"),
        ] {
            assert_eq!(Segment::parse(&syn.bytes()), Some(syn));
            let syn_ack = Segment {
                ack: Some(u32::MAX),
                ..syn
            };
            assert_eq!(Segment::parse(&syn_ack.bytes()), Some(syn_ack));
        }
    }

    #[test]
    fn a_syn_ack_is_answered_by_the_ack_it_asks_for() {
        let syn_ack = Segment {
            sequence: u32::MAX,
            ack: Some(8),
            ..segment("10.0.0.1:1", "10.0.0.2:2")
        };
        let answer = syn_ack.answer();
        assert_eq!((answer.sequence, answer.ack), (8, Some(0)));
        assert_eq!((answer.from, answer.to), (syn_ack.to, syn_ack.from));
        assert!(!answer.syn);
    }
}
