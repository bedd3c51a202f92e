//! Packets of servers, and fields of packets of hosts.

use std::net::IpAddr;

use etherparse::PacketBuilder;

/// Returns the MSS of a TCP packet without IP options.
pub(crate) fn mss(packet: &[u8]) -> Option<u16> {
    let mut options = &packet[40..];
    loop {
        match options {
            [1, rest @ ..] => options = rest,
            [2, 4, high, low, ..] => return Some(u16::from_be_bytes([*high, *low])),
            [_, length, ..] if *length > 1 => options = options.get(usize::from(*length)..)?,
            _ => return None,
        }
    }
}

/// Returns the checksum of the Internet (RFC 1071).
pub(crate) fn checksum(bytes: &[u8], begin: u32) -> [u8; 2] {
    let words = bytes.chunks(2).map(|word| {
        u32::from(u16::from_be_bytes([
            word[0],
            word.get(1).copied().unwrap_or(0),
        ]))
    });
    let sum = words.sum::<u32>() + begin;
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    (!(sum as u16)).to_be_bytes()
}

/// Returns a datagram of either version of IP, with all checksums.
pub(crate) fn udp(from: (IpAddr, u16), to: (IpAddr, u16), payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    let builder = match (from.0, to.0) {
        (IpAddr::V4(from), IpAddr::V4(to)) => PacketBuilder::ipv4(from.octets(), to.octets(), 64),
        (IpAddr::V6(from), IpAddr::V6(to)) => PacketBuilder::ipv6(from.octets(), to.octets(), 64),
        _ => panic!("of two versions"),
    };
    let written = builder.udp(from.1, to.1).write(&mut packet, payload);
    written.expect("fits");
    packet
}

/// Returns a server's SYN-ACK to this SYN.
pub(crate) fn syn_ack(syn: &[u8]) -> Vec<u8> {
    let mut packet = [&syn[..20], &syn[20..40]].concat();
    packet[2..4].copy_from_slice(&40_u16.to_be_bytes());
    packet[12..20].rotate_left(4);
    packet[20..24].rotate_left(2);
    let number = u32::from_be_bytes(syn[24..28].try_into().expect("four bytes"));
    packet[24..28].copy_from_slice(&9000_u32.to_be_bytes());
    packet[28..32].copy_from_slice(&(number + 1).to_be_bytes());
    packet[32..34].copy_from_slice(&[0x50, 0x12]);
    packet[10..12].fill(0);
    packet[36..40].fill(0);
    let header = checksum(&packet[..20], 0);
    packet[10..12].copy_from_slice(&header);
    let pseudo = packet[12..20].chunks(2);
    let pseudo = pseudo.map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let tcp = checksum(&packet[20..], pseudo.sum::<u32>() + 6 + 20);
    packet[36..38].copy_from_slice(&tcp);
    packet
}
