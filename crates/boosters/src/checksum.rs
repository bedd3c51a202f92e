//! The Internet checksum (RFC 1071), and changing it with what it is over (RFC 1624).

use crate::ip::Ip;

/// The sum of 16-bit words, the last one padded with zeros, to be [folded](fold).
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

/// The checksum of what was summed up.
#[must_use]
pub fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Whether what has its checksum within is whole.
#[must_use]
pub fn is_valid(bytes: &[u8]) -> bool {
    fold(sum(bytes)) == 0
}

/// The checksum of a transport packet of this protocol, addresses and all; its own field has to be zero.
#[must_use]
pub fn of_transport(ip: &Ip<'_>, transport: &[u8]) -> u16 {
    fold(pseudo(ip, transport.len()) + sum(transport))
}

/// Whether the checksum within a transport packet is right.
#[must_use]
pub fn is_transport_valid(ip: &Ip<'_>, transport: &[u8]) -> bool {
    fold(pseudo(ip, transport.len()) + sum(transport)) == 0
}

/// The sum of what a transport checksum is over beyond the packet (RFC 9293 §3.1, RFC 8200 §8.1), to be [folded](fold).
#[must_use]
pub fn pseudo(ip: &Ip<'_>, len: usize) -> u64 {
    let addresses = ip.address_bytes();
    sum(addresses) + u64::from(ip.protocol) + len as u64
}

/// Mends the checksum at `at` for a word that it is over: `old` has become `new`. Of no effect where that is outside.
pub fn replace_u16(bytes: &mut [u8], at: usize, old: u16, new: u16) {
    let Some(field) = bytes.get_mut(at..at + 2) else {
        return;
    };
    let before = u16::from_be_bytes([field[0], field[1]]);
    let sum = u64::from(!before) + u64::from(!old) + u64::from(new);
    field.copy_from_slice(&fold(sum).to_be_bytes());
}

/// The same for two words.
pub fn replace_u32(bytes: &mut [u8], at: usize, old: u32, new: u32) {
    replace_u16(bytes, at, (old >> 16) as u16, (new >> 16) as u16);
    replace_u16(bytes, at, old as u16, new as u16);
}
