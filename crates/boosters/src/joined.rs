//! Packets that share a message: those of one UDP flow that a host sent together.
//!
//! They travel in one datagram of the tunnel, so all arrive or none does. Packets of other
//! protocols stay alone: a lost datagram must not take several segments or acknowledgements of a
//! connection.

use crate::{
    ip::{self, protocol},
    packet::Packet,
    wire::JOINED,
};

/// Offsets of IPv4's fragment field, of the protocol, and of addresses and ports.
const FRAGMENT: std::ops::Range<usize> = 6..8;
const PROTOCOL: [usize; 2] = [9, 6];
const ENDS: [std::ops::Range<usize>; 2] = [12..24, 8..44];

/// Returns whether a packet may share the message of an earlier one.
///
/// Both arrived at the same time, so neither waits for the other, and have the same ECN mark, which
/// their datagram gets.
#[must_use]
pub fn may_join(first: &Packet, next: &Packet) -> bool {
    if (first.since, first.ecn) != (next.since, next.ecn) {
        return false;
    }
    let ends = ends(&first.bytes);
    ends.is_some() && ends == self::ends(&next.bytes)
}

/// Returns whether a packet is one that may share a message with others.
#[must_use]
pub fn is_datagram(packet: &[u8]) -> bool {
    ends(packet).is_some()
}

/// Returns addresses and ports of a complete datagram without IP options or extensions.
fn ends(packet: &[u8]) -> Option<&[u8]> {
    let is_whole = ip::length(packet) == Some(packet.len());
    let (kind, is_plain) = match packet {
        [0x45, ..] => {
            let fragment = packet.get(FRAGMENT)?;
            (0, fragment[0] & 0x3f == 0 && fragment[1] == 0)
        }
        _ => (1, ip::version(packet) == Some(6)),
    };
    let is_udp = packet.get(PROTOCOL[kind]) == Some(&protocol::UDP);
    let ends = packet.get(ENDS[kind].clone());
    ends.filter(|_| is_whole && is_plain && is_udp)
}

/// Appends packets to a message that begins with one of them.
#[derive(Debug)]
pub struct Joining<'a> {
    out: &'a mut Vec<u8>,
    begin: usize,
    number: usize,
}

impl<'a> Joining<'a> {
    /// Writes the first packet, which is the whole message if no other follows.
    pub fn new(first: &[u8], out: &'a mut Vec<u8>) -> Self {
        let begin = out.len();
        out.extend_from_slice(first);
        Self {
            out,
            begin,
            number: 1,
        }
    }

    /// Returns the length of the message with another packet of this length.
    #[must_use]
    pub fn length_with(&self, next: usize) -> usize {
        let kind = usize::from(self.number == 1);
        self.length() + kind + next
    }

    /// Adds a packet.
    pub fn push(&mut self, next: &[u8]) {
        if self.number == 1 {
            self.out.insert(self.begin, JOINED);
        }
        self.number += 1;
        self.out.extend_from_slice(next);
    }

    /// Returns the length of the message.
    #[must_use]
    pub fn length(&self) -> usize {
        self.out.len() - self.begin
    }
}

/// Takes the first of the packets that follow each other in `rest`; `None` if it is incomplete.
pub fn split_off<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = ip::length(rest).filter(|length| *length > 0)?;
    let (packet, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(packet)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use etherparse::PacketBuilder;
    use proptest::prelude::*;

    use super::*;

    fn udp(version: u8, ports: [u16; 2], payload: &[u8]) -> Packet {
        let mut bytes = Vec::new();
        let builder = match version {
            4 => PacketBuilder::ipv4([10, 0, 0, 1], [10, 9, 0, 2], 64),
            _ => PacketBuilder::ipv6([0xfd; 16], [0xfc; 16], 64),
        };
        let builder = builder.udp(ports[0], ports[1]);
        builder.write(&mut bytes, payload).expect("fits");
        Packet::new(bytes, Duration::ZERO)
    }

    #[test]
    fn datagrams_of_a_flow_that_came_together_may_join() {
        for version in [4, 6] {
            let first = udp(version, [1, 2], b"one");
            let joins = |change: &dyn Fn(&mut Packet)| {
                let mut next = udp(version, [1, 2], b"other");
                change(&mut next);
                assert_eq!(may_join(&first, &next), may_join(&next, &first));
                may_join(&first, &next)
            };
            let at = if version == 4 { 20 } else { 40 };
            assert!(joins(&|_| {}));
            assert!(!joins(&|next| next.since = Duration::from_nanos(1)));
            assert!(!joins(&|next| next.ecn = crate::ecn::Ecn::Ce));
            assert!(!joins(&|next| next.bytes[at - 1] ^= 1), "another host");
            assert!(!joins(&|next| next.bytes[at] ^= 1), "another source port");
            assert!(!joins(&|next| next.bytes[at + 3] ^= 1), "another port");
            assert!(!joins(&|next| next.bytes.push(0)), "longer than it says");
            assert!(!joins(&|next| next.bytes.truncate(at + 2)), "cut off");
            assert!(!joins(&|next| next.bytes.clear()), "nothing");
            assert!(!joins(&|next| *next = udp(10 - version, [1, 2], b"")));
            let tcp = |next: &mut Packet| next.bytes[PROTOCOL[usize::from(version == 6)]] = 6;
            assert!(!joins(&tcp), "TCP");
            if version == 4 {
                assert!(!joins(&|next| next.bytes[7] = 1), "a fragment");
                assert!(!joins(&|next| next.bytes[6] |= 0x20), "a first fragment");
                assert!(joins(&|next| next.bytes[6] |= 0x40), "not to be fragmented");
                assert!(!joins(&|next| next.bytes[0] = 0x46), "with options");
            }
        }
    }

    proptest! {
        #[test]
        fn packets_come_apart_as_they_were_joined(
            version in prop_oneof![Just(4), Just(6)],
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 2..9),
        ) {
            let packets: Vec<_> = payloads.iter().map(|bytes| udp(version, [1, 2], bytes)).collect();
            let mut out = b"before".to_vec();
            let mut joining = Joining::new(&packets[0].bytes, &mut out);
            for packet in &packets[1..] {
                let expected = joining.length_with(packet.bytes.len());
                joining.push(&packet.bytes);
                prop_assert_eq!(joining.length(), expected);
            }
            prop_assert_eq!(&out[..7], b"before\x03");
            let mut rest = &out[7..];
            for packet in &packets {
                prop_assert_eq!(split_off(&mut rest), Some(&packet.bytes[..]));
            }
            prop_assert_eq!(rest, b"");
        }

        #[test]
        fn of_any_bytes_only_whole_packets_are_taken(
            bytes in prop::collection::vec(prop_oneof![Just(0x45), Just(0x60), any::<u8>()], 0..200),
        ) {
            let mut rest = &bytes[..];
            while let Some(packet) = split_off(&mut rest) {
                prop_assert_eq!(ip::length(packet), Some(packet.len()));
            }
        }
    }
}
