//! Single crafted packets, and captures of the packets on a machine's interfaces.

use std::{
    io::{self, Read as _},
    net::{IpAddr, SocketAddr},
};

use etherparse::{
    IpHeaders, NetSlice, PacketBuilder, PacketBuilderStep, SlicedPacket, TransportSlice,
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
            option: None,
            hops: HOPS,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let (from, to) = (self.from.port(), self.to.port());
        let mut step = self.ip().tcp(from, to, self.sequence, u16::MAX);
        if self.syn {
            step = step.syn();
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

    fn ip(&self) -> PacketBuilderStep<IpHeaders> {
        match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                PacketBuilder::ipv4(from.octets(), to.octets(), self.hops)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                PacketBuilder::ipv6(from.octets(), to.octets(), self.hops)
            }
            (from, to) => panic!("from {from} to {to}"),
        }
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
            option: tcp.options().first().copied(),
            hops,
        })
    }
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

/// Sends many packets to a neighbour, as [`send`] does one; drops those for which the interface has
/// no room. Returns the number sent.
///
/// # Panics
/// When the kernel provides no socket.
pub fn flood(host: &Host, next_hop: IpAddr, segments: impl Iterator<Item = Segment> + Send) -> u64 {
    let next_hop = SocketAddr::new(next_hop, 0);
    let flood = || -> io::Result<u64> {
        let raw = Protocol::from(libc::IPPROTO_RAW);
        let socket = Socket::new(Domain::for_address(next_hop), Type::RAW, Some(raw))?;
        let sent = segments.filter(|segment| {
            let sent = socket.send_to(&segment.bytes(), &next_hop.into());
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
        let seen = self
            .packets
            .into_iter()
            .filter_map(|bytes| Segment::parse(&bytes));
        self.seen.extend(seen);
        self.seen.iter().copied().find(|segment| wanted(segment))
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
