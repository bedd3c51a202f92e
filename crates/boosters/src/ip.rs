//! Parsing of IP packets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::IpSlice;

/// Protocol numbers known to boosters.
pub mod protocol {
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
}

/// Addresses and ports in one direction, and the protocol: the common fields of a connection's
/// packets. Ports are 0 if the protocol has none, or the packet is not the first fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    /// Sender.
    pub from: (IpAddr, u16),
    /// Receiver.
    pub to: (IpAddr, u16),
    /// Transport protocol.
    pub protocol: u8,
}

impl FlowKey {
    /// Returns the key of the opposite direction.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self {
            from: self.to,
            to: self.from,
            ..self
        }
    }
}

/// Parsed IP packet: headers are complete and lengths fit.
#[derive(Clone, Copy, Debug)]
pub struct Ip<'a> {
    /// Whole packet, without trailing bytes.
    pub bytes: &'a [u8],
    /// IP version, 4 or 6.
    pub version: u8,
    /// Transport protocol, after all extensions that could be read.
    pub protocol: u8,
    /// Length of IP's header including extensions: the offset of transport.
    pub header: usize,
    /// True for a fragment: the bytes after the header are no complete transport packet.
    pub fragment: bool,
}

/// Returns the IP version of a packet, if it is 4 or 6.
#[must_use]
pub fn version(packet: &[u8]) -> Option<u8> {
    let version = packet.first()? >> 4;
    [4, 6].contains(&version).then_some(version)
}

/// Returns the length that a packet's header states; `None` if the header itself is incomplete.
#[must_use]
pub fn length(packet: &[u8]) -> Option<usize> {
    let word = |at: usize| {
        Some(usize::from(u16::from_be_bytes(
            *packet.get(at..)?.first_chunk()?,
        )))
    };
    let (header, length) = match version(packet)? {
        4 => (usize::from(packet[0] & 15) * 4, word(2)?),
        _ => (40, word(4)? + 40),
    };
    (header >= 20 && packet.len() >= header && length >= header).then_some(length)
}

impl<'a> Ip<'a> {
    /// Parses a packet; `None` if it is not IP or incomplete.
    #[must_use]
    pub fn parse(packet: &'a [u8]) -> Option<Self> {
        let slice = IpSlice::from_slice(packet).ok()?;
        let payload = slice.payload();
        // Both point into the same bytes.
        let header = (payload.payload.as_ptr() as usize).checked_sub(packet.as_ptr() as usize)?;
        let bytes = packet.get(..header + payload.payload.len())?;
        Some(Self {
            bytes,
            version: version(packet)?,
            protocol: payload.ip_number.0,
            header,
            fragment: payload.fragmented,
        })
    }

    /// Returns the bytes after IP's header.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[self.header..]
    }

    /// Returns whether its transport checksum covers other addresses, or it is authenticated: with
    /// an authentication header (RFC 4302), a routing header (RFC 8200 §4.4), a source route (RFC
    /// 791 §3.1), or any extension not known to be harmless.
    #[must_use]
    pub fn is_bound(&self) -> bool {
        if self.version == 4 {
            return self.bytes[9] != self.protocol || is_routed(&self.bytes[20..self.header]);
        }
        let (mut next, mut at) = (self.bytes[6], 40);
        while at < self.header {
            // Hop-by-hop and destination options.
            let ([0 | 60], Some([after, len])) = ([next], self.bytes.get(at..at + 2)) else {
                return true;
            };
            (next, at) = (*after, at + 8 + 8 * usize::from(*len));
        }
        next != self.protocol
    }

    /// Returns source and destination as encoded in the packet.
    #[must_use]
    pub fn address_bytes(&self) -> &'a [u8] {
        match self.version {
            4 => &self.bytes[12..20],
            _ => &self.bytes[8..40],
        }
    }

    /// Returns the sender.
    #[must_use]
    pub fn source(&self) -> IpAddr {
        let addresses = self.address_bytes();
        address(&addresses[..addresses.len() / 2])
    }

    /// Returns the receiver.
    #[must_use]
    pub fn destination(&self) -> IpAddr {
        let addresses = self.address_bytes();
        address(&addresses[addresses.len() / 2..])
    }

    /// Returns the addresses, with ports where there are some.
    #[must_use]
    pub fn key(&self) -> FlowKey {
        let ports = match (self.protocol, self.payload()) {
            (protocol::TCP | protocol::UDP, [a, b, c, d, ..]) if !self.fragment => {
                [u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d])]
            }
            _ => [0; 2],
        };
        FlowKey {
            from: (self.source(), ports[0]),
            to: (self.destination(), ports[1]),
            protocol: self.protocol,
        }
    }
}

/// Returns whether these IPv4 options contain a source route (131, 137), or are malformed.
fn is_routed(mut options: &[u8]) -> bool {
    loop {
        match *options {
            [] | [0, ..] => return false,
            [1, ref after @ ..] => options = after,
            [131 | 137, ..] => return true,
            [_, len, ..] if len >= 2 && usize::from(len) <= options.len() => {
                options = &options[len.into()..];
            }
            _ => return true,
        }
    }
}

fn address(bytes: &[u8]) -> IpAddr {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Ipv4Addr::from(v4).into();
    }
    let v6: [u8; 16] = bytes.try_into().unwrap_or_default();
    Ipv6Addr::from(v6).into()
}
