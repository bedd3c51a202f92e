//! Congestion marks of IP headers, within the tunnel and around it (RFC 3168, RFC 6040).

use crate::{checksum, ip};

/// The two bits of an IP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Ecn {
    /// The sender does not know of marks: it has to be told of congestion by loss.
    #[default]
    NotEct = 0,
    /// ECT(1), of L4S senders too (RFC 9331).
    Ect1 = 1,
    /// ECT(0).
    Ect0 = 2,
    /// Congestion was experienced on the way.
    Ce = 3,
}

impl Ecn {
    /// From the two low bits.
    #[must_use]
    pub fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// Whether the sender understands marks.
    #[must_use]
    pub fn is_capable(self) -> bool {
        self != Self::NotEct
    }
}

/// The marks of an IP packet; none where it is too short to have any.
#[must_use]
pub fn of_packet(packet: &[u8]) -> Ecn {
    match (ip::version(packet), packet) {
        (Some(4), [_, tos, ..]) => Ecn::from_bits(*tos),
        (Some(6), [_, second, ..]) => Ecn::from_bits(second >> 4),
        _ => Ecn::NotEct,
    }
}

/// Says in an IP packet that congestion was experienced. Returns whether that could be said: its sender understands it.
pub fn mark(packet: &mut [u8]) -> bool {
    if !of_packet(packet).is_capable() {
        return false;
    }
    match ip::version(packet) {
        Some(4) if packet.len() >= 20 => {
            let old = u16::from_be_bytes([packet[0], packet[1]]);
            packet[1] |= 3;
            let new = u16::from_be_bytes([packet[0], packet[1]]);
            checksum::replace_u16(packet, 10, old, new);
            true
        }
        Some(6) => {
            packet[1] |= 0x30;
            true
        }
        _ => false,
    }
}

/// What becomes of a packet whose datagram was marked on the link (RFC 6040 §4.2). Returns whether it goes on: one whose sender does
/// not understand marks is to be dropped, as it would have been without the tunnel.
#[must_use]
pub fn decapsulate(packet: &mut [u8], congested: bool) -> bool {
    !congested || mark(packet)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Packet;
    use etherparse::PacketBuilder;

    fn packet(ecn: u8) -> Vec<u8> {
        let mut bytes = Vec::new();
        let builder = PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).udp(1, 2);
        builder.write(&mut bytes, &[1, 2, 3]).expect("fits");
        bytes[1] = ecn;
        let old = 0x4500;
        checksum::replace_u16(&mut bytes, 10, old, old | u16::from(ecn));
        bytes
    }

    #[test]
    fn marks_are_set_where_they_are_understood_and_the_header_stays_whole() {
        for ecn in 0..4 {
            let mut bytes = packet(ecn);
            assert!(checksum::is_valid(&bytes[..20]));
            let goes_on = decapsulate(&mut bytes, true);
            assert_eq!(goes_on, ecn != 0);
            let expected = if ecn == 0 { 0 } else { 3 };
            assert_eq!(
                Packet::new(bytes.clone(), Default::default()).ecn as u8,
                expected
            );
            assert!(checksum::is_valid(&bytes[..20]));
        }
        assert!(decapsulate(&mut packet(0), false));
    }
}
