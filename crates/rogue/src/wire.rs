//! Writers of parts and frames with any values.

use std::net::{IpAddr, SocketAddr};

use tunnel::wire::varint;

/// Bytes to which values are appended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    /// Begins with a type.
    pub fn new(kind: u8) -> Self {
        Self(vec![kind])
    }

    /// Appends a variable-length integer; values above 2^62 - 1 become that.
    #[must_use]
    pub fn number(mut self, value: u64) -> Self {
        varint::emit(value, &mut self.0);
        self
    }

    /// Appends a variable-length integer in its longest form.
    #[must_use]
    pub fn long_number(mut self, value: u64) -> Self {
        let value = value.min(varint::MAX) | 0b11 << 62;
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// Appends the low bits of a value; whole bytes, at most 64 bits.
    #[must_use]
    pub fn fixed(mut self, bits: usize, value: u64) -> Self {
        let bytes = value.to_be_bytes();
        self.0.extend_from_slice(&bytes[8 - (bits / 8).min(8)..]);
        self
    }

    /// Appends bytes.
    #[must_use]
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
}

/// OPEN of a stream of class `normal`.
pub fn open(stream: u64, header: &[u8]) -> Vec<u8> {
    let part = Writer::new(0x40).number(stream).fixed(8, 1);
    part.number(header.len() as u64).bytes(header).0
}

/// DATA with a length.
pub fn data(stream: u64, position: u64, bytes: &[u8]) -> Vec<u8> {
    let part = Writer::new(0x43).number(stream).number(position);
    part.number(bytes.len() as u64).bytes(bytes).0
}

/// DATA from the beginning of a stream to its end.
pub fn last(stream: u64, bytes: &[u8]) -> Vec<u8> {
    let part = Writer::new(0x45).number(stream).number(0);
    part.number(bytes.len() as u64).bytes(bytes).0
}

/// RESET, code 0.
pub fn reset(stream: u64, sent: u64) -> Vec<u8> {
    let part = Writer::new(0x46).number(stream);
    part.fixed(8, 0).number(sent).0
}

/// CREDIT.
pub fn credit(stream: u64, until: u64) -> Vec<u8> {
    Writer::new(0x47).number(stream).number(until).0
}

/// `SESSION_CREDIT`.
pub fn session_credit(until: u64) -> Vec<u8> {
    Writer::new(0x48).number(until).0
}

/// Header of a path probe that asks for so many bytes.
pub fn probe_header(down: u64) -> Vec<u8> {
    Writer(vec![2, 64, 0, 0]).fixed(64, down).0
}

/// Header of a flow inventory.
pub fn inventory_header(flows: u64) -> Vec<u8> {
    Writer(vec![2, 32, 0, 0]).fixed(64, flows).0
}

/// Flag of a header: the stream is compressed.
pub const COMPRESSED: u8 = 4;

/// Header of a flow with further flags. `continues` are its three positions, if it continues.
pub fn flow_header(
    flags: u8,
    token: u128,
    continues: Option<[u64; 3]>,
    destination: SocketAddr,
    client: SocketAddr,
) -> Vec<u8> {
    let family = u8::from(destination.is_ipv6());
    let resumes = if continues.is_some() { 8 } else { 0 };
    let mut out = Writer(vec![2, flags | family | resumes, 0, 5]).bytes(&token.to_be_bytes());
    for position in continues.iter().flatten() {
        out = out.fixed(64, *position);
    }
    for address in [destination, client] {
        out = match address.ip() {
            IpAddr::V4(ip) => out.bytes(&ip.octets()),
            IpAddr::V6(ip) => out.bytes(&ip.octets()),
        };
        out = out.fixed(16, address.port().into());
    }
    out.bytes(b"rogue").0
}
