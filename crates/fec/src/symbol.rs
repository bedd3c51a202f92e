//! Packets of unequal length as symbols of one length.
//!
//! A code works on symbols of one length. A packet becomes a symbol by a length in front (two
//! bytes, network order) and padding with zeros to the longest packet that is coded with it
//! (ramakrishnan2000, chapter 5; as in RFC 6363). A repair symbol has that length.

/// Bytes of the length in front of a packet.
pub const LENGTH_BYTES: usize = 2;

/// Longest packet that can be coded.
pub const PACKET_MAX: usize = u16::MAX as usize;

/// Writes `packet` as a symbol: its length, its bytes. The caller adds the zeros.
///
/// # Panics
///
/// If the packet is longer than [`PACKET_MAX`], or `symbol` too short.
pub fn write(packet: &[u8], symbol: &mut [u8]) {
    let length = u16::try_from(packet.len()).expect("a packet of at most 65,535 bytes");
    let (front, rest) = symbol.split_at_mut(LENGTH_BYTES);
    front.copy_from_slice(&length.to_be_bytes());
    rest[..packet.len()].copy_from_slice(packet);
}

/// Returns the packet in a restored symbol; `None` if its length is invalid, which only happens if
/// the symbols were not all of one encoder.
#[must_use]
pub fn read(symbol: &[u8]) -> Option<&[u8]> {
    let (length, rest) = symbol.split_first_chunk()?;
    rest.get(..u16::from_be_bytes(*length).into())
}
