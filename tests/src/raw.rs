//! Single packets as no kernel would send them, and what really is on a machine's wires.

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
    /// Source.
    pub from: SocketAddr,
    /// Destination.
    pub to: SocketAddr,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement number, where there is one.
    pub ack: Option<u32>,
    /// Whether it opens a connection, or answers such a packet.
    pub syn: bool,
    /// The kind of its first option, where it has any.
    pub option: Option<u8>,
    /// Its TTL or hop limit.
    pub hops: u8,
}

/// The TTL of what says nothing else.
const HOPS: u8 = 64;

impl Segment {
    /// A SYN.
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

    /// The ACK that the sender of a SYN answers to this SYN-ACK.
    ///
    /// # Panics
    /// When this is none.
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

    /// `None` for anything but TCP, packets with data included.
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

/// Puts a packet on the wire toward a neighbour, whatever its addresses.
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

/// Puts many packets on the wire toward a neighbour, as [`send`] does one. Those for which the machine has no room are left out. Returns how
/// many were sent.
///
/// # Panics
/// When the kernel gives no socket.
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
    host.enter(flood).expect("root may send what it likes")
}

/// What goes over a machine's interfaces, before any of its filters: whole packets.
#[derive(Debug)]
pub struct Packets(Socket);

impl Packets {
    /// Listens from now on.
    ///
    /// # Panics
    /// Without CAP_NET_RAW.
    pub fn of(host: &Host) -> Self {
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

/// Those that there have been; ends where there is none as yet.
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

/// The TCP packets without data among them.
#[derive(Debug)]
pub struct Wire {
    packets: Packets,
    seen: Vec<Segment>,
}

impl Wire {
    /// Listens from now on.
    ///
    /// # Panics
    /// Without CAP_NET_RAW.
    pub fn of(host: &Host) -> Self {
        Self {
            packets: Packets::of(host),
            seen: Vec::new(),
        }
    }

    /// The first TCP packet so far that is wanted.
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
