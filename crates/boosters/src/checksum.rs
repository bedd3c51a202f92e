//! Internet checksum (RFC 1071), and its incremental update (RFC 1624).

use crate::ip::Ip;

/// Sums 16-bit words, the last one padded with zeros. The result is to be [folded](fold).
#[must_use]
pub fn sum(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(2);
    let mut sum: u64 = 0;
    for word in words.by_ref() {
        sum += u64::from(u16::from_be_bytes([word[0], word[1]]));
    }
    if let [last] = words.remainder() {
        sum += u64::from(*last) << 8;
    }
    sum
}

/// Folds a sum into the checksum.
#[must_use]
pub fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Returns whether bytes that include their checksum are intact.
#[must_use]
pub fn is_valid(bytes: &[u8]) -> bool {
    fold(sum(bytes)) == 0
}

/// Computes the checksum of a transport packet, addresses included; its own field must be zero.
#[must_use]
pub fn of_transport(ip: &Ip<'_>, transport: &[u8]) -> u16 {
    fold(pseudo(ip, transport.len()) + sum(transport))
}

/// Returns whether the checksum in a transport packet is right.
#[must_use]
pub fn is_transport_valid(ip: &Ip<'_>, transport: &[u8]) -> bool {
    fold(pseudo(ip, transport.len()) + sum(transport)) == 0
}

/// Sums the pseudo-header of a transport checksum (RFC 9293 §3.1, RFC 8200 §8.1). The result is to
/// be [folded](fold).
#[must_use]
pub fn pseudo(ip: &Ip<'_>, len: usize) -> u64 {
    let addresses = ip.address_bytes();
    sum(addresses) + u64::from(ip.protocol) + len as u64
}

/// Updates the checksum at `at` for a covered word: `old` has become `new`. No effect if `at` is
/// out of bounds.
pub fn replace_u16(bytes: &mut [u8], at: usize, old: u16, new: u16) {
    let Some(field) = bytes.get_mut(at..at + 2) else {
        return;
    };
    let before = u16::from_be_bytes([field[0], field[1]]);
    let sum = u64::from(!before) + u64::from(!old) + u64::from(new);
    field.copy_from_slice(&fold(sum).to_be_bytes());
}

/// Updates the checksum for two words.
pub fn replace_u32(bytes: &mut [u8], at: usize, old: u32, new: u32) {
    replace_u16(bytes, at, (old >> 16) as u16, (new >> 16) as u16);
    replace_u16(bytes, at, old as u16, new as u16);
}
