use etherparse::{PacketBuilder, TcpOptionElement};
use proptest::prelude::*;

use super::*;

/// Packets of a flow that the kernel may join, with their payloads.
#[derive(Debug, Clone)]
struct Flow {
    version: u8,
    is_tcp: bool,
    options: bool,
    id: u16,
    seq: u32,
    /// ECE, PSH and FIN of the last, and CWR of the first.
    flags: [bool; 4],
    payloads: Vec<Vec<u8>>,
}

impl Flow {
    /// Builds one packet at a time, as a host does.
    fn packets(&self) -> Vec<Vec<u8>> {
        let mut sent = 0;
        let numbered = self.payloads.iter().enumerate();
        let packets = numbered.map(|(number, payload)| {
            let seq = self.seq.wrapping_add(sent);
            sent += payload.len() as u32;
            self.packet(number, seq, payload)
        });
        packets.collect()
    }

    fn packet(&self, number: usize, seq: u32, payload: &[u8]) -> Vec<u8> {
        let ip = match self.version {
            4 => PacketBuilder::ipv4([10, 1, 0, 2], [10, 2, 0, 3], 63),
            _ => PacketBuilder::ipv6([0xfd; 16], [0xfc; 16], 63),
        };
        let mut packet = Vec::new();
        if self.is_tcp {
            let mut tcp = ip.tcp(4000, 5000, seq, 9000).ack(77);
            if self.options {
                tcp = tcp.options(&[TcpOptionElement::Timestamp(1, 2)]).unwrap();
            }
            tcp.write(&mut packet, payload).unwrap();
        } else {
            ip.udp(4000, 5000).write(&mut packet, payload).unwrap();
        }
        let is_last = number + 1 == self.payloads.len();
        let [ece, psh, fin, cwr] = self.flags;
        let flags = [
            (0x40, ece),
            (0x08, psh && is_last),
            (0x01, fin && is_last),
            (0x80, cwr && number == 0),
        ];
        let flags = flags.into_iter().filter(|(_, is_set)| *is_set);
        let at = if self.version == 4 { 20 } else { 40 };
        if self.is_tcp {
            packet[at + 13] |= flags.map(|(flag, _)| flag).sum::<u8>();
        }
        if self.version == 4 {
            let id = self.id.wrapping_add(number as u16);
            packet[4..6].copy_from_slice(&id.to_be_bytes());
            packet[10..12].fill(0);
            let sum = checksum::fold(checksum::sum(&packet[..20]));
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        let field = at + if self.is_tcp { 16 } else { 6 };
        packet[field..field + 2].fill(0);
        let ip = Ip::parse(&packet).unwrap();
        let sum = never_zero(checksum::of_transport(&ip, ip.payload()));
        packet[field..field + 2].copy_from_slice(&sum.to_be_bytes());
        packet
    }

    /// Joins the packets as the kernel does (`tcp_gro_complete`, `udp_gro_complete`).
    fn joined(&self, is_partial: bool) -> ([u8; HEADER], Vec<u8>) {
        let packets = self.packets();
        let at = if self.version == 4 { 20 } else { 40 };
        let (first, last) = (&packets[0], &packets[packets.len() - 1]);
        let headers = first.len() - self.payloads[0].len();
        let mut packet = first[..headers].to_vec();
        packet.extend(self.payloads.iter().flatten());
        let length = packet.len();
        let mut put = |at: usize, value: u16| {
            packet[at..at + 2].copy_from_slice(&value.to_be_bytes());
        };
        match self.version {
            4 => put(2, length as u16),
            _ => put(4, (length - 40) as u16),
        }
        let offset = if self.is_tcp { 16 } else { 6 };
        if self.is_tcp {
            packet[at + 13] |= last[at + 13];
        } else {
            put(at + 4, (length - at) as u16);
        }
        if is_partial {
            let ip = Ip::parse(&packet).unwrap();
            let sum = !checksum::fold(checksum::pseudo(&ip, length - at));
            packet[at + offset..][..2].copy_from_slice(&sum.to_be_bytes());
        }
        let kind = match (self.is_tcp, self.version) {
            (true, 4) => TCP4,
            (true, _) => TCP6 | ECN,
            (false, _) => UDP,
        };
        // The kernel states the length of some first part as that of the headers.
        let fields = [999, self.payloads[0].len(), at, offset];
        (header(is_partial, kind, fields), packet)
    }
}

fn header(is_partial: bool, kind: u8, fields: [usize; 4]) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..2].copy_from_slice(&[is_partial.into(), kind]);
    for (to, field) in header[2..].chunks_exact_mut(2).zip(fields) {
        to.copy_from_slice(&(field as u16).to_ne_bytes());
    }
    header
}

fn parts(header: [u8; HEADER], packet: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let count = split(header, &mut packet.to_vec(), |part| all.push(part.to_vec()));
    assert_eq!(count, all.len());
    all
}

prop_compose! {
    fn flow()(
        version in prop_oneof![Just(4), Just(6)],
        is_tcp: bool,
        options: bool,
        id: u16,
        seq: u32,
        flags: [bool; 4],
        count in 1..20_usize,
        segment in 1..300_usize,
        last in 0..300_usize,
        bytes in prop::collection::vec(any::<u8>(), 300),
    ) -> Flow {
        let mut payloads = vec![bytes[..segment].to_vec(); count];
        payloads[count - 1].truncate(1 + last % segment);
        for (number, payload) in payloads.iter_mut().enumerate() {
            payload[0] = number as u8;
        }
        // The first one states the length of each.
        if count == 1 {
            payloads[0] = bytes[..segment].to_vec();
        }
        Flow { version, is_tcp, options, id, seq, flags, payloads }
    }
}

proptest! {
    #[test]
    fn packets_come_out_as_they_were_joined(flow in flow(), is_partial: bool) {
        let (header, packet) = flow.joined(is_partial);
        prop_assert_eq!(parts(header, &packet), flow.packets());
    }

    #[test]
    fn checksums_are_completed(flow in flow()) {
        let expected = &flow.packets()[0];
        let at = if flow.version == 4 { 20 } else { 40 };
        let offset = if flow.is_tcp { 16 } else { 6 };
        let mut packet = expected.clone();
        let ip = Ip::parse(expected).unwrap();
        let sum = !checksum::fold(checksum::pseudo(&ip, ip.payload().len()));
        packet[at + offset..][..2].copy_from_slice(&sum.to_be_bytes());
        let header = header(true, WHOLE, [0, 0, at, offset]);
        prop_assert_eq!(parts(header, &packet), [expected.clone()]);
    }

    /// A damaged header gives other packets or none, and each is as long as it states.
    #[test]
    fn damage_does_no_harm(
        flow in flow(),
        is_partial: bool,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        kind in prop::option::of(0..7_u8),
        fields in prop::option::of(any::<[u16; 4]>()),
        length in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let (mut given, mut packet) = flow.joined(is_partial);
        for (at, byte) in changes {
            let at = at.index(packet.len().min(80));
            packet[at] = byte;
        }
        given[1] = kind.unwrap_or(given[1]);
        if let Some(fields) = fields {
            given = header(is_partial, given[1], fields.map(usize::from));
        }
        if let Some(length) = length {
            packet.truncate(length.index(packet.len()));
        }
        for part in parts(given, &packet) {
            if given[1] & !ECN != WHOLE {
                let ip = Ip::parse(&part).expect("a packet");
                prop_assert_eq!(ip.bytes.len(), part.len());
            }
        }
    }

    #[test]
    fn noise_does_no_harm(given: [u8; HEADER], packet in prop::collection::vec(any::<u8>(), 0..200)) {
        parts(given, &packet);
    }
}

fn datagrams() -> Flow {
    Flow {
        version: 4,
        is_tcp: false,
        options: false,
        id: 7,
        seq: 0,
        flags: [false; 4],
        payloads: vec![vec![1; 10], vec![2; 10], vec![3; 4]],
    }
}

#[test]
fn what_is_not_of_its_kind_gives_nothing() {
    let (given, packet) = datagrams().joined(true);
    assert_eq!(parts(given, &packet).len(), 3);
    for kind in [TCP4, TCP6, 2, 3, 6] {
        let mut given = given;
        given[1] = kind;
        assert_eq!(parts(given, &packet), Vec::<Vec<u8>>::new(), "{kind}");
    }
    let changed = |at: usize, to: u8| {
        let mut packet = packet.clone();
        packet[at] = to;
        parts(given, &packet).len()
    };
    assert_eq!(changed(6, 0x20), 0, "a fragment");
    assert_eq!(changed(3, 40), 0, "shorter than it is");
    assert_eq!(changed(9, 6), 0, "TCP");
    let without_length = header(true, UDP, [28, 0, 20, 6]);
    assert_eq!(parts(without_length, &packet).len(), 0);
    let elsewhere = header(true, UDP, [28, 10, 20, 8]);
    assert_eq!(parts(elsewhere, &packet).len(), 0);
    assert_eq!(parts(given, &packet[..28]).len(), 0, "cut off");
    let outside = header(true, WHOLE, [0, 0, 60, 6]);
    assert_eq!(parts(outside, &packet).len(), 0);
}

#[test]
fn datagrams_without_checksums_stay_so() {
    let (given, mut packet) = datagrams().joined(false);
    packet[26..28].fill(0);
    let parts = parts(given, &packet);
    assert_eq!(parts.len(), 3);
    assert!(parts.iter().all(|part| part[26..28] == [0, 0]));
}
