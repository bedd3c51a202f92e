//! Packets between hosts, boosters and the session.

use tunnel::session::{Outages, Rate, SessionConfig, SkipConfig, Unreached};

use super::*;

const CONFIG: &str = r#"
[intercept]
lan = ["lan0"]
[[site]]
name = "other"
mode = "packet"
peer = "hub"
match = { protocol = "gre", src = "10.1.0.0/16" }
[[site]]
name = "voice"
mode = "packet"
peer = "hub"
match = { protocol = "udp", src = "10.1.0.0/16", dport = 5060 }
[peer.hub]
endpoint = "192.0.2.1:1"
public_key = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA="
[identity]
key_file = "k"
"#;

const HOST: [u8; 4] = [10, 1, 0, 2];
const FAR: [u8; 4] = [203, 0, 113, 5];
const NOW: Duration = Duration::from_secs(7);

pub(crate) fn packets() -> Packets {
    let config = pep_core::config::parse(CONFIG).expect("valid");
    Packets::new(&config, 0, 1).expect("sites")
}

/// Builds an IPv4 packet with nothing but ports behind its header.
fn packet(protocol: u8, from: ([u8; 4], u16), to: ([u8; 4], u16)) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, protocol, 0, 0];
    packet.extend([from.0, to.0].concat());
    packet.extend([from.1, to.1].map(u16::to_be_bytes).concat());
    packet.extend([0, 8, 0, 0]);
    packet
}

fn error(to: [u8; 4], about: &[u8]) -> Vec<u8> {
    let mut packet = packet(1, ([192, 0, 2, 9], 0x0303), (to, 0));
    packet[24..].fill(0);
    packet.extend(about);
    packet[3] = packet.len() as u8;
    packet
}

#[test]
fn a_peer_reaches_only_hosts_that_its_sites_answer() {
    let mut packets = packets();
    let mut give = |packet: &[u8]| {
        packets.take(NOW, 0, Ecn::Ect0, packet);
        let given = packets.poll_host(NOW).map(|(chain, packet)| {
            assert!(packet.is_some());
            chain
        });
        (given, packets.take_strangers())
    };
    let answer = packet(17, (FAR, 5060), (HOST, 7000));
    assert_eq!(give(&answer), (Some(1), [0; 3]));
    let mut fragment = answer.clone();
    fragment[6..8].copy_from_slice(&[0, 3]);
    fragment[20..24].fill(9);
    let word = |word: &[u8]| u32::from(u16::from_be_bytes([word[0], word[1]]));
    let sum: u32 = fragment[..20].chunks(2).map(word).sum();
    fragment[10..12].copy_from_slice(&(!(sum as u16 + (sum >> 16) as u16)).to_be_bytes());
    assert_eq!(give(&fragment), (Some(1), [0; 3]), "without ports");
    let sent = packet(17, (HOST, 7000), (FAR, 5060));
    assert_eq!(give(&error(HOST, &sent)), (Some(1), [0; 3]));
    for unmatched in [
        packet(17, (FAR, 53), (HOST, 7000)),
        packet(6, (FAR, 5060), (HOST, 7000)),
        packet(17, (FAR, 5060), ([10, 2, 0, 1], 7000)),
        error([10, 1, 0, 3], &sent),
        error(HOST, &packet(17, (HOST, 7000), (FAR, 53))),
    ] {
        assert_eq!(give(&unmatched), (None, [0, 1, 0]), "{unmatched:?}");
    }
    let mut routed = packet(17, (FAR, 5060), (HOST, 7000));
    (routed[0], routed[3]) = (0x46, 32);
    routed.splice(20..20, [131, 3, 4, 0]);
    assert_eq!(give(&routed), (None, [1, 0, 0]));
    // Refused packets reach no chain, and accepted ones count for the site of their request.
    let facts = packets.facts(NOW, None);
    let given = facts.sites.iter().map(|site| site.chain.packets_up);
    assert_eq!(given.collect::<Vec<_>>(), [0, 3]);
    assert_eq!((facts.strangers.martian, facts.strangers.unmatched), (1, 5));
}

#[test]
fn a_peer_reaches_no_loopback_and_no_group() {
    let text = CONFIG.replace("protocol = \"gre\", src = \"10.1.0.0/16\"", "");
    let config = pep_core::config::parse(&text).expect("valid");
    let mut packets = Packets::new(&config, 0, 1).expect("sites");
    let mut give = |from, to| {
        let packet = packet(17, (from, 5060), (to, 7000));
        packets.take(NOW, 0, Ecn::Ect0, &packet);
        packets.poll_host(NOW).is_some()
    };
    assert!(give(FAR, HOST));
    for address in [[127, 0, 0, 1], [224, 0, 0, 1], [255; 4], [0; 4]] {
        assert!(!give(FAR, address) && !give(address, HOST), "{address:?}");
    }
    // A site might name a group. All other packets match none.
    assert_eq!(packets.take_strangers(), [7, 1, 0]);
}

#[test]
fn a_peers_packets_keep_to_its_hosts_and_destinations() {
    const OTHER: [u8; 4] = [198, 51, 100, 5];
    let matched = CONFIG.replace(", src = \"10.1.0.0/16\"", "");
    let other = "[peer.other]\npublic_key = \"ISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+P0A=\"\n\
                 endpoint = \"192.0.2.2:1\"\nfrom = [\"198.51.100.0/24\"]\n[identity]";
    let matched = matched.replace("[identity]", other);
    let given = |keys: &str, from, to| {
        let text = matched.replace("[peer.hub]", &format!("[peer.hub]\n{keys}"));
        let config = pep_core::config::parse(&text).expect("valid");
        let mut packets = Packets::new(&config, 0, 1).expect("sites");
        packets.take(NOW, 0, Ecn::Ect0, &packet(17, from, to));
        let given = packets.poll_host(NOW).is_some();
        assert_eq!(packets.take_strangers(), [0, 0, u64::from(!given)]);
        given
    };
    let (far, host, other) = ((FAR, 5060), (HOST, 7000), (OTHER, 5060));
    assert!(given("", far, host));
    assert!(!given("", other, host), "another peer's host speaks");
    assert!(!given("", far, (OTHER, 7000)), "to another peer's host");
    assert!(!given("", far, ([169, 254, 169, 254], 7000)), "link-local");
    assert!(given("from = [\"203.0.113.0/24\"]", far, host));
    assert!(!given("from = [\"203.0.112.0/24\"]", far, host));
    assert!(given("to = [\"10.1.0.0/16:7000\"]", far, host));
    assert!(!given("to = [\"10.1.0.0/16:7001\"]", far, host));
}

fn session() -> Session {
    let config = SessionConfig {
        initiator: true,
        rate: Rate::Stated(10_000_000),
        return_rate: None,
        rtt: Duration::from_millis(20),
        packet_start: 1200,
        packet_max: 1400,
        overhead: 53,
        outages: Outages::Never,
        stream_credit: 1 << 20,
        session_credit: 1 << 20,
        kept_max: 64 << 20,
        streams_max: 8,
        packets: true,
        unreached: Unreached::default(),
        peer_packets: true,
        peer_rests: false,
        memory: None,
        overhead_max: 0.5,
        skips: SkipConfig::NONE,
    };
    Session::new(config, NOW)
}

/// Offers a packet of this site with a dummy session.
fn taken(packets: &mut Packets, chain: usize, silence: Option<Duration>) -> Taken {
    let packet = packet(17, (HOST, 7000), (FAR, 5060));
    packets.offer(NOW, chain, &packet, silence)
}

#[test]
fn packets_pass_after_silence_beyond_their_deadline_and_a_short_outage() {
    let text = CONFIG.replace(
        "[[site]]\nname = \"voice\"",
        "[site.packet]\ndeadline = \"3s\"\n[[site]]\nname = \"voice\"",
    );
    let config = pep_core::config::parse(&text.replace(
        "dport = 5060 }",
        "dport = 5060 }\npacket = { deadline = \"20ms\" }",
    ));
    let mut packets = Packets::new(&config.expect("valid"), 0, 1).expect("sites");
    let ms = Duration::from_millis;
    assert_eq!(taken(&mut packets, 0, None), Taken::Pass, "no session");
    let mut session = session();
    packets.queues = Some(Queues {
        words: session
            .open_packets(Class::Interactive, 0)
            .expect("a queue"),
        chains: Vec::new(),
    });
    for (chain, silence, expected) in [
        (0, None, Taken::Yes),
        (0, Some(ms(2999)), Taken::Yes),
        (0, Some(ms(3000)), Taken::Pass),
        (1, Some(ms(999)), Taken::Yes),
        (1, Some(ms(1000)), Taken::Pass),
        (1, Some(Duration::MAX), Taken::Pass),
    ] {
        assert_eq!(taken(&mut packets, chain, silence), expected, "{silence:?}");
    }
}

/// Returns the codes of the sites' encoders, and that of the peer's decoder. `fec` is a table for
/// each of two sites.
fn codes(fec: [&str; 2]) -> ([Backend; 2], Backend) {
    let matches = ["src = \"10.1.0.0/16\" }", "dport = 5060 }"];
    let text = matches
        .iter()
        .zip(fec)
        .fold(CONFIG.to_owned(), |text, (end, fec)| {
            text.replacen(end, &format!("{end}\nboost = {{ fec = {fec} }}"), 1)
        });
    let config = pep_core::config::parse(&text).expect("valid");
    let boosts: Vec<_> = config
        .packet_sites()
        .map(|site| &site.policy.boost)
        .collect();
    let encoder = |site: usize| {
        settings::boosters(boosts[site])
            .fec
            .expect("on")
            .config
            .code
    };
    (
        [encoder(0), encoder(1)],
        settings::decoder(boosts.iter().copied()),
    )
}

#[test]
fn each_site_encodes_by_its_own_code_and_one_site_decides_how_the_peer_is_decoded() {
    let native = Backend::default();
    let blocks = "{ scheme = \"block\" }";
    let other = "{ scheme = \"block\", code = \"reed-solomon-erasure\" }";
    assert_eq!(codes(["true", blocks]), ([native; 2], native));
    assert_eq!(
        codes([blocks, other]),
        ([native, Backend::Reference], Backend::Reference)
    );
    assert_eq!(
        codes([other, "true"]),
        ([Backend::Reference, native], Backend::Reference)
    );
}

#[test]
fn due_messages_that_cannot_be_sent_set_no_timer() {
    let mut packets = packets();
    packets.renew();
    let mut session = session();
    packets.begin(NOW, &mut session);
    // The local abilities are to be sent at once.
    packets.settle(NOW, Some(&mut session));
    assert_eq!(packets.deadline(), None, "the session knows of it");
    let mut word = Vec::new();
    let words = packets.queues.as_ref().expect("begun").words;
    assert!(packets.next(words, NOW, 1200, &mut word).is_some());
    let again = packets.deadline().expect("the peer has not answered");
    assert!(again > NOW);
    packets.settle(again, Some(&mut session));
    assert_eq!(packets.deadline(), None);
}

/// 1,024 acknowledgements that the receiver makes at once, in one message.
fn acknowledgements(number: u32) -> Vec<u8> {
    let mut packet = packet(6, (FAR, 5060), (HOST, 7000));
    packet.truncate(24);
    packet.extend(1_u32.to_be_bytes());
    packet.extend(((number << 20) + (1 << 19)).to_be_bytes());
    packet.extend([0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    packet[3] = 40;
    boosters::tcp::seal(&mut packet);
    let head = [
        &[0x13, 0xff, 0xff][..],
        &(number << 20).to_be_bytes(),
        &[0; 4],
    ]
    .concat();
    [head, packet].concat()
}

#[test]
fn packets_that_wait_for_hosts_are_bounded() {
    let mut packets = packets();
    let packet = packet(17, (FAR, 5060), (HOST, 7000));
    let give = |packets: &mut Packets| packets.take(NOW, 0, Ecn::Ect0, &packet);
    for _ in 0..10_000 {
        give(&mut packets);
    }
    let waiting = std::iter::from_fn(|| packets.poll_host(NOW)).count();
    assert_eq!(waiting, WAITING_MAX / WAITING_MIN);
    assert_eq!(packets.refused, 10_000 - waiting as u64);
    give(&mut packets);
    assert!(packets.poll_host(NOW).is_some());
}

#[test]
fn refused_fragments_come_one_by_one() {
    let mut packets = packets();
    // Their header's checksum is wrong.
    let mut fragment = packet(17, (FAR, 5060), (HOST, 7000));
    fragment[6..8].copy_from_slice(&[0, 3]);
    for _ in 0..2 {
        packets.take(NOW, 0, Ecn::Ect0, &fragment);
    }
    for refused in 1..=2 {
        assert_eq!(packets.poll_host(NOW), Some((1, None)));
        assert_eq!(packets.refused, refused);
    }
    assert_eq!(packets.poll_host(NOW), None);
}

/// Returns a segment of a host, or an acknowledgement for it.
fn tcp((from, to): ([u8; 4], [u8; 4]), [seq, ack]: [u32; 2], data: &[u8]) -> Vec<u8> {
    let mut packet = packet(6, (from, 5060), (to, 5060));
    packet.truncate(24);
    packet.extend([seq, ack].map(u32::to_be_bytes).concat());
    packet.extend([0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    packet.extend(data);
    packet[3] = packet.len() as u8;
    boosters::tcp::seal(&mut packet);
    packet
}

#[test]
fn packets_that_boosters_make_for_hosts_are_bounded_and_paced() {
    let text = CONFIG.replace(
        "protocol = \"udp\", src = \"10.1.0.0/16\", dport = 5060 }",
        "protocol = \"tcp\", src = \"10.1.0.0/16\", dport = 5060 }\n\
         boost = { divacks = { mode = \"brute_force\", parts = 64 } }",
    );
    let config = pep_core::config::parse(&text).expect("valid");
    let acknowledged = |drains: bool| {
        let mut packets = Packets::new(&config, 0, 1).expect("sites");
        for number in 0..20_000 {
            let segment = tcp((HOST, FAR), [number * 100, 1], &[7; 100]);
            packets.exchange.from_host(NOW, 1, &segment);
        }
        let (mut all, mut drained) = (0, 0);
        for number in 1..=1000 {
            let message = tcp((FAR, HOST), [1, number * 100], &[]);
            packets.take(NOW, 0, Ecn::Ect0, &message);
            all = all.max(packets.exchange.waiting() / WAITING_MIN);
            while drains && packets.poll_host(NOW).is_some() {
                drained += 1;
            }
        }
        (all, drained, packets.refused)
    };
    let (waiting, _, refused) = acknowledged(false);
    let most = WAITING_MAX / WAITING_MIN + 64;
    assert!(
        (1024..=most).contains(&waiting) && refused > 0,
        "{waiting} {refused}"
    );
    let (_, drained, refused) = acknowledged(true);
    let most = ((4 << 20) + (1000 - refused as usize) * 40 * 64) / COUNTED_MIN + 64;
    assert!(
        (1024..=most).contains(&drained) && refused > 0,
        "{drained} {refused}"
    );
}

#[test]
fn messages_that_become_many_packets_are_paced() {
    let text = CONFIG.replace("protocol = \"udp\"", "protocol = \"tcp\"");
    let config = pep_core::config::parse(&text).expect("valid");
    let mut packets = Packets::new(&config, 0, 1).expect("sites");
    let seconds = 5;
    let mut counts = (0, 0);
    for number in 0..1000 * seconds {
        let now = NOW + Duration::from_millis(number.into());
        let message = acknowledgements(number);
        counts.0 += message.len();
        packets.take(now, 0, Ecn::Ect0, &message);
        packets.settle(now, None);
        counts.1 += std::iter::from_fn(|| packets.poll_host(NOW)).count();
    }
    let (sent, made) = counts;
    // The last message may exceed the pace by all that it becomes.
    let most = (sent * 64 + (4 << 20) + seconds as usize * (1 << 20)) / COUNTED_MIN + 1024;
    assert!(made > 1024 && made <= most, "{made}, but {most} at most");
    assert!(packets.refused > 0);
    // Packets that are no longer than their messages always pass.
    let packet = packet(6, (FAR, 5060), (HOST, 7000));
    for number in 0..1000 {
        let now = NOW + Duration::from_secs(60) + Duration::from_millis(number);
        packets.take(now, 0, Ecn::Ect0, &packet);
        assert!(packets.poll_host(NOW).is_some());
    }
}
