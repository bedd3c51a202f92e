//! Congestion marks of IP headers, inside and outside the tunnel (RFC 3168, RFC 6040).

use crate::{checksum, ip};

/// ECN field of an IP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Ecn {
    /// The sender does not support ECN: congestion is signalled by loss.
    #[default]
    NotEct = 0,
    /// ECT(1), used by L4S senders too (RFC 9331).
    Ect1 = 1,
    /// ECT(0).
    Ect0 = 2,
    /// Congestion experienced on the path.
    Ce = 3,
}

impl Ecn {
    /// Converts the two low bits.
    #[must_use]
    pub fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// Returns the mark of a packet at the tunnel's exit: it entered with `self`, and its datagram
    /// came with `outer`. `None` if it must be dropped: congestion, and a sender without ECN (RFC
    /// 6040 §4.2, figure 4).
    #[must_use]
    pub fn leaving(self, outer: Self) -> Option<Self> {
        match (self, outer) {
            (Self::NotEct, Self::Ce) => None,
            (Self::Ect0, Self::Ect1) => Some(Self::Ect1),
            (Self::Ect0 | Self::Ect1, Self::Ce) => Some(Self::Ce),
            (inner, _) => Some(inner),
        }
    }

    /// Returns the mark of a whole whose parts have this mark and `other`: congestion, if any part
    /// has it (RFC 3168 §5.3), else the more severe of the two, as between headers (RFC 6040 §4.2).
    #[must_use]
    pub fn joined(self, other: Self) -> Self {
        let severity = [Self::NotEct, Self::Ect0, Self::Ect1, Self::Ce];
        let worst = severity.into_iter().rev();
        let mut worst = worst.filter(|ecn| [self, other].contains(ecn));
        worst.next().unwrap_or_default()
    }

    /// Returns whether the sender supports ECN.
    #[must_use]
    pub fn is_capable(self) -> bool {
        self != Self::NotEct
    }
}

/// Reads the mark of an IP packet; `NotEct` where it is too short.
#[must_use]
pub fn of_packet(packet: &[u8]) -> Ecn {
    match (ip::version(packet), packet) {
        (Some(4), [_, tos, ..]) => Ecn::from_bits(*tos),
        (Some(6), [_, second, ..]) => Ecn::from_bits(second >> 4),
        _ => Ecn::NotEct,
    }
}

/// Writes the mark of an IP packet; no effect if it is too short.
fn write(packet: &mut [u8], ecn: Ecn) {
    match ip::version(packet) {
        Some(4) if packet.len() >= 20 => {
            let old = u16::from_be_bytes([packet[0], packet[1]]);
            packet[1] = packet[1] & !3 | ecn as u8;
            let new = u16::from_be_bytes([packet[0], packet[1]]);
            checksum::replace_u16(packet, 10, old, new);
        }
        Some(6) if packet.len() >= 2 => packet[1] = packet[1] & !0x30 | (ecn as u8) << 4,
        _ => {}
    }
}

/// Sets Congestion Experienced in an IP packet. Returns false if its sender does not support ECN.
pub fn mark(packet: &mut [u8]) -> bool {
    let capable = of_packet(packet).is_capable();
    if capable {
        write(packet, Ecn::Ce);
    }
    capable && of_packet(packet) == Ecn::Ce
}

/// Applies the mark `outer` of a packet's datagram (RFC 6040 §4.2). Returns false if the packet
/// must be dropped: the link was congested and its sender does not support ECN. Without the tunnel
/// it would have been dropped, too.
#[must_use]
pub fn decapsulate(packet: &mut [u8], outer: Ecn) -> bool {
    let inner = of_packet(packet);
    let leaving = inner.leaving(outer);
    if let Some(ecn) = leaving.filter(|ecn| *ecn != inner) {
        write(packet, ecn);
    }
    leaving.is_some()
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

    const ALL: [Ecn; 4] = [Ecn::NotEct, Ecn::Ect0, Ecn::Ect1, Ecn::Ce];

    /// Figure 4 of RFC 6040, in packets of both versions.
    #[test]
    fn marks_are_as_rfc_6040_has_them_and_the_header_stays_whole() {
        use Ecn::{Ce, Ect0, Ect1, NotEct};
        let table = [
            (NotEct, [Some(NotEct), Some(NotEct), Some(NotEct), None]),
            (Ect0, [Some(Ect0), Some(Ect0), Some(Ect1), Some(Ce)]),
            (Ect1, [Some(Ect1), Some(Ect1), Some(Ect1), Some(Ce)]),
            (Ce, [Some(Ce); 4]),
        ];
        for (inner, leaving) in table {
            for (outer, expected) in ALL.into_iter().zip(leaving) {
                let mut v4 = packet(inner as u8);
                assert!(checksum::is_valid(&v4[..20]));
                assert_eq!(decapsulate(&mut v4, outer), expected.is_some());
                assert!(checksum::is_valid(&v4[..20]));
                let mut v6 = vec![0; 40];
                (v6[0], v6[1]) = (0x6a, 0xc5 | (inner as u8) << 4);
                assert_eq!(decapsulate(&mut v6, outer), expected.is_some());
                assert_eq!((v6[0], v6[1] & 0xcf), (0x6a, 0xc5));
                for bytes in [v4, v6] {
                    let came = Packet::new(bytes, Default::default()).ecn;
                    assert_eq!(came, expected.unwrap_or(inner));
                }
            }
        }
    }

    #[test]
    fn a_whole_is_marked_if_any_part_is() {
        for (index, one) in ALL.into_iter().enumerate() {
            for (other_index, other) in ALL.into_iter().enumerate() {
                assert_eq!(one.joined(other), ALL[index.max(other_index)]);
            }
        }
    }
}
