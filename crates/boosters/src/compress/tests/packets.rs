//! Packets of all kinds, to be compressed.

use etherparse::PacketBuilder;
use splitmix::SplitMix64;

pub(super) fn ip(v6: bool, host: u8) -> etherparse::PacketBuilderStep<etherparse::IpHeaders> {
    let address = |host| std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, host);
    let (from, to) = (address(host.into()).octets(), address(200).octets());
    let headers = if v6 {
        let header = etherparse::Ipv6Header {
            hop_limit: 61,
            source: from,
            destination: to,
            ..Default::default()
        };
        etherparse::IpHeaders::Ipv6(header, Default::default())
    } else {
        let header = etherparse::Ipv4Header {
            time_to_live: 61,
            source: [10, 0, 0, host],
            destination: [10, 0, 1, 200],
            ..Default::default()
        };
        etherparse::IpHeaders::Ipv4(header, Default::default())
    };
    PacketBuilder::ip(headers)
}

pub(super) fn udp(v6: bool, host: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let builder = ip(v6, host).udp(5004, 5006);
    builder.write(&mut out, payload).expect("fits");
    out
}

/// Returns a segment with timestamps after NOP NOP, as nearly all have.
pub(super) fn tcp(v6: bool, host: u8, seq: u32, payload: &[u8]) -> Vec<u8> {
    use etherparse::TcpOptionElement::{Noop, Timestamp};
    let mut out = Vec::new();
    let builder = ip(v6, host).tcp(443, 40_000, seq, 501).ack(77);
    let options = [Noop, Noop, Timestamp(seq / 3, 9)];
    let builder = builder.options(&options).expect("fits");
    builder.write(&mut out, payload).expect("fits");
    out
}

pub(super) fn set_id(packet: &mut [u8], id: u16) {
    packet[4..6].copy_from_slice(&id.to_be_bytes());
    packet[10..12].fill(0);
    let sum = crate::checksum::fold(crate::checksum::sum(&packet[..20]));
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

pub(super) fn text(n: u64, len: usize) -> Vec<u8> {
    let line = |i: u64| {
        format!(
            "<li class=\"entry\"><a href=\"/archive/{}/item-{i}.html\">Entry {} of {n}</a></li>\r\n",
            n % 97,
            i * 7
        )
    };
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\
        Cache-Control: max-age=600\r\nVary: Accept-Encoding\r\n\r\n";
    let mut all = String::from(head);
    all.extend((0..40).map(|i| line(n * 40 + i)));
    all.truncate(len);
    all.into_bytes()
}

/// Returns a packet of any kind, valid or unusual.
pub(super) fn any_packet(draws: &mut SplitMix64) -> Vec<u8> {
    let (v6, host) = (draws.below(2) == 0, draws.below(4) as u8);
    let len = draws.below(300) as usize;
    let payload = if draws.below(2) == 0 {
        draws.bytes(len)
    } else {
        vec![draws.next_u64() as u8; len]
    };
    let seq = draws.next_u64() as u32;
    let mut packet = match draws.below(4) {
        0 => udp(v6, host, &payload),
        1 => tcp(v6, host, seq, &payload),
        2 => {
            let mut out = Vec::new();
            let builder = ip(v6, host).tcp(443, 40_000, seq, 501);
            let len = draws.below(11) as usize * 4;
            let options = draws.bytes(len);
            let builder = builder.options_raw(&options).expect("fits");
            builder.write(&mut out, &payload).expect("fits");
            out
        }
        _ => {
            let mut out = Vec::new();
            let builder = ip(v6, host);
            let protocol = etherparse::IpNumber([50, 47, 1, 44][draws.below(4) as usize]);
            builder.write(&mut out, protocol, &payload).expect("fits");
            out
        }
    };
    if draws.below(3) == 0 {
        let at = draws.below(packet.len().min(80) as u64) as usize;
        packet[at] ^= 1 << draws.below(8);
        if draws.below(2) == 0 && packet[0] == 0x45 {
            let id = draws.next_u64() as u16;
            set_id(&mut packet, id);
        }
    }
    match draws.below(30) {
        0 => packet.truncate(draws.below(100) as usize),
        1 => packet.extend_from_slice(&[0; 9]),
        _ => {}
    }
    packet
}
