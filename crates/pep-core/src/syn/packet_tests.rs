use etherparse::{IpNumber, Ipv6FragmentHeader, TcpOptionElement};
use proptest::prelude::*;

use super::*;

const CLIENT4: [u8; 4] = [10, 1, 0, 2];
const SERVER4: [u8; 4] = [10, 2, 0, 2];

fn address6(last: u8) -> [u8; 16] {
    let mut address = [0; 16];
    (address[0], address[15]) = (0xfd, last);
    address
}

fn builder(v4: bool) -> PacketBuilderStep<IpHeaders> {
    if v4 {
        PacketBuilder::ipv4(CLIENT4, SERVER4, 63)
    } else {
        PacketBuilder::ipv6(address6(1), address6(2), 63)
    }
}

fn syn_with(v4: bool, data: &[u8]) -> Vec<u8> {
    let options = [TcpOptionElement::MaximumSegmentSize(1460)];
    let segment = builder(v4).tcp(40_000, 80, u32::MAX - 1, 64_240).syn();
    let segment = segment.options(&options).expect("options fit");
    let mut packet = Vec::new();
    segment.write(&mut packet, data).expect("a packet");
    packet
}

fn parsed(packet: &[u8]) -> Syn {
    match parse(packet) {
        Parsed::Syn(syn) => syn,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_syn_is_read() {
    for v4 in [true, false] {
        let syn = parsed(&syn_with(v4, b""));
        assert_eq!(syn.flow.client.port(), 40_000);
        assert_eq!(syn.flow.destination.port(), 80);
        assert_eq!(syn.flow.client.is_ipv4(), v4);
        assert_eq!((syn.sequence, syn.data_len, syn.dscp), (u32::MAX - 1, 0, 0));
    }
}

/// Returns a SYN as a machine without a network card sends it (CHECKSUM_PARTIAL in Linux), and the
/// same one with its checksum.
fn partial(v4: bool, data: &[u8]) -> [Vec<u8>; 2] {
    let whole = syn_with(v4, data);
    let tcp = if v4 { 20 } else { 40 };
    let length = (whole.len() - tcp) as u32;
    let addresses = if v4 { &whole[12..20] } else { &whole[8..40] };
    let words = addresses.chunks(2);
    let sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
        .sum();
    let mut sum = sum + 6 + length;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let mut partial = whole.clone();
    partial[tcp + 16..tcp + 18].copy_from_slice(&(sum as u16).to_be_bytes());
    [partial, whole]
}

proptest! {
    #[test]
    fn a_checksum_of_the_pseudo_header_is_completed(
        v4 in any::<bool>(),
        data in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let [mut partial, whole] = partial(v4, &data);
        prop_assert!(complete(&mut partial));
        prop_assert_eq!(&partial, &whole);
        prop_assert!(complete(&mut partial), "a whole one stays");
        prop_assert_eq!(partial, whole);
    }

    /// Not even by chance: the kernel would drop such a packet.
    #[test]
    fn a_wrong_checksum_is_not_repaired(v4 in any::<bool>(), bit in 0_usize..24 * 8) {
        let mut damaged = syn_with(v4, b"");
        let tcp = if v4 { 20 } else { 40 };
        damaged[tcp + bit / 8] ^= 1 << (bit % 8);
        let before = damaged.clone();
        prop_assert!(!complete(&mut damaged));
        prop_assert_eq!(damaged, before);
    }
}

#[test]
fn dscp_is_read_without_ecn() {
    let mut v4 = syn_with(true, b"");
    v4[1] = 46 << 2 | 0b10;
    assert_eq!(parsed(&v4).dscp, 46);
    let mut v6 = syn_with(false, b"");
    let class = 46 << 2 | 0b10u8;
    v6[0] |= class >> 4;
    v6[1] |= class << 4;
    assert_eq!(parsed(&v6).dscp, 46);
}

#[test]
fn only_a_pure_syn_is_held() {
    const FLAGS: usize = 13;
    for (v4, header) in [(true, 20), (false, 40)] {
        for flags in 0..=255u8 {
            let mut packet = syn_with(v4, b"");
            packet[header + FLAGS] = flags;
            let (fin, syn, rst, ack) = (1, 2, 4, 16);
            let pure = flags & (fin | syn | rst | ack) == syn;
            assert_eq!(matches!(parse(&packet), Parsed::Syn(_)), pure, "{flags:#x}");
            if !pure {
                assert!(matches!(parse(&packet), Parsed::Pass(_)), "{flags:#x}");
            }
        }
    }
}

#[test]
fn fragments_extensions_and_long_ones_pass() {
    let mut fragment = syn_with(true, b"");
    fragment[6] = 0x20; // more fragments
    assert_eq!(parse(&fragment), Parsed::Pass(SERVER4.into()));

    let inner = syn_with(false, b"");
    let mut extended = inner[..40].to_vec();
    extended[6] = IpNumber::IPV6_DESTINATION_OPTIONS.0;
    extended[5] += 8;
    extended.extend([IpNumber::TCP.0, 0, 1, 4, 0, 0, 0, 0]);
    extended.extend(&inner[40..]);
    assert_eq!(parse(&extended), Parsed::Pass(address6(2).into()));

    let mut fragmented = inner[..40].to_vec();
    fragmented[6] = IpNumber::IPV6_FRAGMENTATION_HEADER.0;
    fragmented[5] += 8;
    let header = Ipv6FragmentHeader::new(IpNumber::TCP, 0.try_into().unwrap(), true, 7);
    fragmented.extend(header.to_bytes());
    fragmented.extend(&inner[40..]);
    assert_eq!(parse(&fragmented), Parsed::Pass(address6(2).into()));

    assert!(matches!(
        parse(&syn_with(true, &[0; 1240])),
        Parsed::Pass(_)
    ));
    assert!(matches!(parse(&syn_with(true, &[0; 1236])), Parsed::Syn(_)));
}

#[test]
fn what_ends_early_or_late_passes() {
    for v4 in [true, false] {
        let packet = syn_with(v4, b"");
        let shorter = &packet[..packet.len() - 1];
        assert!(matches!(parse(shorter), Parsed::Pass(_)));
        let longer = [&packet[..], b"x"].concat();
        assert!(matches!(parse(&longer), Parsed::Pass(_)));
    }
}

#[test]
fn multicast_and_rubbish_are_noise() {
    let mut multicast = syn_with(true, b"");
    multicast[16] = 224;
    assert_eq!(parse(&multicast), Parsed::Noise);
    for rubbish in [&b""[..], b"x", b"\x45", &[0x60; 30], &[0x00; 60]] {
        assert_eq!(parse(rubbish), Parsed::Noise, "{rubbish:?}");
    }
}

#[test]
fn the_reset_acknowledges_syn_and_data() {
    for v4 in [true, false] {
        let packet = reset(&parsed(&syn_with(v4, b"hello")));
        let sliced = SlicedPacket::from_ip(&packet).expect("a packet");
        let Some(TransportSlice::Tcp(tcp)) = sliced.transport else {
            panic!("no TCP");
        };
        assert!(tcp.rst() && tcp.ack() && !tcp.syn());
        assert_eq!((tcp.source_port(), tcp.destination_port()), (80, 40_000));
        assert_eq!(tcp.sequence_number(), 0);
        // SEG.SEQ + 1 + 5, modulo 2^32.
        assert_eq!(tcp.acknowledgment_number(), 4);
    }
}

/// Internet checksum of all parts, which is zero where it is right (RFC 1071).
fn checksum(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let words = bytes.chunks(2).map(|word| {
        let low = word.get(1).copied().unwrap_or(0);
        u32::from(u16::from_be_bytes([word[0], low]))
    });
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[test]
fn checksums_of_what_is_forged_are_right() {
    let v4 = syn_with(true, b"");
    let rst = reset(&parsed(&v4));
    assert_eq!(checksum(&[&rst[..20]]), 0);
    let len = (rst.len() - 20) as u8;
    assert_eq!(checksum(&[&rst[12..20], &[0, 6, 0, len], &rst[20..]]), 0);

    let error = IcmpError::from_router([10, 0, 0, 1].into(), Unreachable::Host);
    let message = icmp(&error, &v4, CLIENT4.into()).unwrap();
    assert_eq!(checksum(&[&message[..20]]), 0);
    assert_eq!(checksum(&[&message[20..]]), 0);

    let v6 = syn_with(false, b"");
    let error = IcmpError::from_router(address6(9).into(), Unreachable::Neighbour);
    let message = icmp(&error, &v6, address6(1).into()).unwrap();
    let len = (message.len() - 40) as u8;
    assert_eq!(
        checksum(&[
            &message[8..40],
            &[0, 0, 0, len, 0, 0, 0, 58],
            &message[40..]
        ]),
        0
    );
}

#[test]
fn icmp_quotes_the_clients_syn() {
    let syn = syn_with(true, b"");
    let error = IcmpError {
        from: [192, 0, 2, 1].into(),
        kind: 3,
        code: 10,
        info: 0x0102_0304,
    };
    let message = icmp(&error, &syn, CLIENT4.into()).unwrap();
    assert_eq!(message[12..16], [192, 0, 2, 1]);
    assert_eq!(message[16..20], CLIENT4);
    assert_eq!(message[20..22], [3, 10]);
    assert_eq!(message[24..28], [1, 2, 3, 4]);
    assert_eq!(message[28..], syn);
}

#[test]
fn quotes_are_cut_to_what_the_standards_allow() {
    let long = syn_with(true, &[0; 1000]);
    let error = IcmpError::from_router([10, 0, 0, 1].into(), Unreachable::Network);
    assert_eq!(icmp(&error, &long, CLIENT4.into()).unwrap().len(), 576);
    let long = syn_with(false, &[0; 1210]);
    let error = IcmpError::from_router(address6(9).into(), Unreachable::Network);
    assert_eq!(icmp(&error, &long, address6(1).into()).unwrap().len(), 1280);
}

#[test]
fn an_error_of_the_other_family_is_not_sent() {
    let error = IcmpError::from_router(address6(9).into(), Unreachable::Network);
    assert_eq!(icmp(&error, &syn_with(true, b""), CLIENT4.into()), None);
}

#[test]
fn routers_answer_as_linux_does() {
    let (v4, v6): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), address6(9).into());
    for (why, icmp, icmpv6) in [
        (Unreachable::Network, (3, 0), (1, 0)),
        (Unreachable::Host, (3, 1), (1, 0)),
        (Unreachable::Neighbour, (3, 1), (1, 3)),
        (Unreachable::Prohibited, (3, 13), (1, 1)),
    ] {
        let of = |from| {
            let error = IcmpError::from_router(from, why);
            (error.kind, error.code)
        };
        assert_eq!((of(v4), of(v6)), (icmp, icmpv6), "{why:?}");
    }
}

proptest! {
    #[test]
    fn no_packet_panics(packet in proptest::collection::vec(any::<u8>(), 0..200)) {
        answer_all(&packet);
    }

    #[test]
    fn no_spoilt_syn_panics(
        v4: bool,
        data in proptest::collection::vec(any::<u8>(), 0..40),
        spoil in proptest::collection::vec((0..100usize, any::<u8>()), 0..6),
        cut in 0..100usize,
    ) {
        let mut packet = syn_with(v4, &data);
        for (at, byte) in spoil {
            if let Some(place) = packet.get_mut(at) {
                *place = byte;
            }
        }
        packet.truncate(packet.len().saturating_sub(cut % 50));
        answer_all(&packet);
    }
}

/// Every packet parsed as a SYN can be answered, and the answers go to its client.
fn answer_all(packet: &[u8]) {
    let Parsed::Syn(syn) = parse(packet) else {
        return;
    };
    let client = syn.flow.client.ip();
    assert_eq!(destination(&reset(&syn)), Some(client));
    for from in [IpAddr::from([10, 0, 0, 1]), address6(9).into()] {
        let error = IcmpError::from_router(from, Unreachable::Host);
        let message = icmp(&error, packet, client);
        assert_eq!(message.is_some(), from.is_ipv4() == client.is_ipv4());
        if let Some(message) = message {
            assert_eq!(destination(&message), Some(client));
        }
    }
}
