//! Packets of unequal length as symbols of one length.
//!
//! A code works on symbols of one length. A packet becomes one by its length in front (two bytes,
//! network order) and zeros behind, as many as the longest of those that are coded together needs
//! (ramakrishnan2000, chapter 5; RFC 6363 has the same). A repair symbol is as long as that.

/// The bytes of the length in front of a packet.
pub const LENGTH_BYTES: usize = 2;

/// The longest packet that can be coded.
pub const PACKET_MAX: usize = u16::MAX as usize;

/// Writes `packet` as a symbol: its length, its bytes. Zeros are up to the caller.
///
/// # Panics
///
/// If the packet is longer than [`PACKET_MAX`], or `symbol` not long enough.
pub fn write(packet: &[u8], symbol: &mut [u8]) {
    let length = u16::try_from(packet.len()).expect("a packet of at most 65,535 bytes");
    let (front, rest) = symbol.split_at_mut(LENGTH_BYTES);
    front.copy_from_slice(&length.to_be_bytes());
    rest[..packet.len()].copy_from_slice(packet);
}

/// The packet in a restored symbol; `None` if its length makes no sense, which only happens if
/// not all symbols were of one encoder.
#[must_use]
pub fn read(symbol: &[u8]) -> Option<&[u8]> {
    let (length, rest) = symbol.split_first_chunk()?;
    rest.get(..u16::from_be_bytes(*length).into())
}
