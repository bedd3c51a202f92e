//! `checksum`: adds a checksum to UDP datagrams over IPv4 without one, so that damage in the
//! network behind the link is detected (ramakrishnan2000 §2.3, the UDP checksum booster; RFC 768).
//! On the link itself the tunnel's authentication detects it.

use std::time::Duration;

use crate::{
    booster::{Booster, Out},
    checksum,
    ip::{Ip, protocol},
    packet::Packet,
};

/// Adds missing UDP checksums.
#[derive(Debug, Default)]
pub struct UdpChecksum {
    added: u64,
}

impl UdpChecksum {
    /// Creates the booster.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

/// Returns offset and value of the missing checksum; `None` if there is one, or none is possible.
fn missing(packet: &[u8]) -> Option<(usize, u16)> {
    let ip = Ip::parse(packet)?;
    let udp = ip.payload();
    let [_, _, _, _, a, b, 0, 0, ..] = *udp else {
        return None;
    };
    let whole = usize::from(u16::from_be_bytes([a, b])) == udp.len();
    if ip.version != 4 || ip.protocol != protocol::UDP || ip.fragment || !whole {
        return None;
    }
    let sum = checksum::of_transport(&ip, udp);
    // Zero would mean that there is none.
    Some((ip.header + 6, if sum == 0 { 0xffff } else { sum }))
}

impl Booster for UdpChecksum {
    fn down(&mut self, _now: Duration, mut packet: Packet, out: &mut Out) {
        if let Some((at, sum)) = missing(&packet.bytes) {
            packet.bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
            self.added += 1;
        }
        out.down.push(packet);
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("added", self.added);
    }
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    #[test]
    fn a_checksum_is_added_where_there_is_none_and_others_stay() {
        let mut booster = UdpChecksum::new();
        let mut out = Out::default();
        for len in 0..50 {
            let mut whole = Vec::new();
            let builder = PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9).udp(5, 6);
            builder.write(&mut whole, &vec![7; len]).unwrap();
            let mut without = whole.clone();
            without[26..28].fill(0);
            for packet in [&without, &whole, &without[..24].to_vec()] {
                booster.down(
                    Duration::ZERO,
                    Packet::new(packet.clone(), Duration::ZERO),
                    &mut out,
                );
            }
            assert_eq!(out.down[0].bytes, whole);
            assert_eq!(out.down[1].bytes, whole);
            assert_eq!(out.down[2].bytes, without[..24]);
            out.down.clear();
        }
        assert_eq!(booster.added, 50);
    }
}
