//! IP packets around datagrams, as the link sees them.

use tunnel::wire::DATAGRAM_OVERHEAD;

use splitmix::mix;

use crate::side::Address;

/// IP and UDP headers, in bytes.
pub const HEADERS: usize = 28;

/// Bytes that the link adds to a packet.
pub const OVERHEAD: usize = HEADERS + DATAGRAM_OVERHEAD;

/// Header of a packet on the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Source.
    pub from: Address,
    /// Destination.
    pub to: Address,
}

impl Header {
    /// Begins a packet; the datagram follows it.
    pub fn emit(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.from.to_be_bytes());
        out.extend_from_slice(&self.to.to_be_bytes());
        out.extend_from_slice(&self.sum().to_be_bytes());
        out.resize(out.len() + HEADERS - 12, 0);
    }

    /// Returns the header and the datagram of a packet; `None` if the header was damaged.
    pub fn parse(packet: &mut [u8]) -> Option<(Self, &mut [u8])> {
        let (header, datagram) = packet.split_at_mut_checked(HEADERS)?;
        let (from, rest) = header.split_first_chunk()?;
        let (to, rest) = rest.split_first_chunk()?;
        let parsed = Self {
            from: Address::from_be_bytes(*from),
            to: Address::from_be_bytes(*to),
        };
        (*rest.first_chunk()? == parsed.sum().to_be_bytes()).then_some((parsed, datagram))
    }

    fn sum(self) -> u64 {
        mix(u64::from(self.from) << 16 | u64::from(self.to))
    }
}
