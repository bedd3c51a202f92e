use std::{collections::BTreeMap, time::Duration};

use etherparse::PacketBuilder;

use super::*;
use crate::{
    booster::Booster,
    chain::{Chain, QueueLayer, Receiver},
    checksum,
    rule::{Path, Rule},
    stack::Layer,
    wire::Abilities,
};

/// Returns a segment of the receiving host: a pure acknowledgement unless it has bytes.
pub fn ack(port: u16, seq: u32, ack: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let builder = PacketBuilder::ipv4([10, 0, 0, 1], [10, 9, 0, 2], 64)
        .tcp(port, 80, seq, 1000)
        .ack(ack);
    builder.write(&mut bytes, data).expect("fits");
    bytes
}

fn chain() -> Chain {
    let layer = QueueLayer::new(
        "ack_reconstruction",
        Abilities::ACKS,
        Rule::ALWAYS,
        Collapse::new(Config::default()),
    );
    let mut chain = Chain::new(
        Vec::new(),
        vec![layer],
        Queue::new(1 << 20, None),
        Vec::new(),
    );
    let path = Path {
        abilities: Abilities::ALL,
        ..Path::default()
    };
    chain.set_path(Duration::ZERO, &path);
    chain
}

fn receiver() -> Receiver {
    let layer = Layer::new("ack_reconstruction", 0, Rule::ALWAYS, Regenerate::new(16));
    Receiver::new(vec![layer])
}

fn numbers(packets: &[Packet]) -> Vec<u32> {
    let tcp = |packet: &Packet| {
        let ip = Ip::parse(&packet.bytes).expect("whole");
        assert!(checksum::is_transport_valid(&ip, ip.payload()));
        Tcp::parse(ip).expect("TCP").ack
    };
    packets.iter().map(tcp).collect()
}

/// Sends all messages of the chain at once. Returns their number and the packets received over
/// time.
fn carry(chain: &mut Chain, now: Duration) -> (usize, Vec<(Duration, Packet)>) {
    let (mut receiver, mut packets, mut messages) = (receiver(), Vec::new(), 0);
    let mut out = Vec::new();
    while chain.poll_message(now, 1300, &mut out).is_some() {
        receiver.handle(now, &out, Ecn::NotEct);
        out.clear();
        messages += 1;
    }
    let mut at = now;
    loop {
        while let Some(packet) = receiver.poll_packet() {
            packets.push((at, packet));
        }
        let Some(due) = receiver.deadline() else {
            return (messages, packets);
        };
        at = due;
        receiver.on_time(at);
    }
}

#[test]
fn waiting_acknowledgements_are_merged_and_regenerated_with_their_spacing() {
    let mut chain = chain();
    for number in 0..10u32 {
        let now = Duration::from_millis(u64::from(number) * 10);
        chain.from_host(now, &ack(1, 1, 1000 + number * 100, &[]));
    }
    let now = Duration::from_millis(200);
    let (messages, packets) = carry(&mut chain, now);
    assert_eq!(messages, 1);
    let (times, packets): (Vec<_>, Vec<_>) = packets.into_iter().unzip();
    let expected: Vec<u32> = (0..10).map(|number| 1000 + number * 100).collect();
    assert_eq!(numbers(&packets), expected);
    assert_eq!(times[9] - times[0], Duration::from_millis(90));
    assert_eq!(packets[9].bytes, ack(1, 1, 1900, &[]));
}

/// Returns the first packet to leave if the second arrives while the first waits.
fn first_of(first: &[u8], second: &[u8]) -> Vec<u8> {
    let mut chain = chain();
    for packet in [first, second] {
        chain.from_host(Duration::ZERO, packet);
    }
    let mut out = Vec::new();
    chain.poll_message(Duration::ZERO, 1300, &mut out);
    out
}

/// Returns a segment with these options.
fn with(options: &[u8], seq: u32, number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = tcp::tests::with_options(&ack(1, seq, number, &[]), options);
    bytes.extend_from_slice(data);
    let len = bytes.len() as u16;
    bytes[2..4].copy_from_slice(&len.to_be_bytes());
    checksum::replace_u16(&mut bytes, 10, len - data.len() as u16, len);
    tcp::seal(&mut bytes);
    bytes
}

#[test]
fn what_is_damaged_is_not_mended() {
    let damaged = |bytes: &[u8]| tcp::tests::damaged(bytes);
    let (data, second) = (ack(1, 1, 1000, b"data"), ack(1, 5, 2000, &[]));
    let (plain, newer) = (ack(1, 1, 1000, &[]), ack(1, 1, 2000, &[]));
    assert_eq!(first_of(&damaged(&data), &second), damaged(&data));
    assert_eq!(first_of(&data, &damaged(&second)), data);
    assert_eq!(first_of(&plain, &damaged(&newer)), plain);
    // With timestamps, the whole checksum is recomputed.
    let time = |value: u8| [1, 1, 8, 10, 0, 0, 0, value, 0, 0, 0, 9];
    let (data, second) = (
        with(&time(1), 1, 1000, b"data"),
        with(&time(2), 5, 2000, &[]),
    );
    assert_eq!(
        first_of(&data, &second),
        with(&time(2), 1, 2000, b"data"),
        "undamaged ones are merged"
    );
    let mut broken = data;
    *broken.last_mut().expect("data") ^= 1;
    assert_eq!(first_of(&broken, &second), broken);
}

#[test]
fn what_is_sealed_or_says_more_is_not_changed() {
    let mut md5 = vec![1, 1, 19, 18];
    md5.extend_from_slice(&[7; 16]);
    for options in [&md5[..], &[30, 4, 0, 0]] {
        let plain = with(options, 1, 1000, &[]);
        assert_eq!(first_of(&plain, &with(options, 1, 2000, &[])), plain);
        let data = with(options, 1, 1000, b"data");
        assert_eq!(first_of(&data, &ack(1, 5, 2000, &[])), data);
    }
    // IPv6, with and without a routing header.
    let segment = tcp::tests::segment6;
    let (first, second) = (segment(1, 1000, b"data"), segment(5, 2000, &[]));
    assert_eq!(first_of(&first, &second), segment(1, 2000, b"data"));
    let mut routed = first;
    (routed[5], routed[6]) = (routed[5] + 8, 43);
    routed.splice(40..40, [6, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(first_of(&routed, &second), routed);
}

#[test]
fn a_peer_that_is_no_longer_able_gets_the_newest_alone() {
    for renewed in [false, true] {
        let mut chain = chain();
        for number in 0..10u32 {
            chain.from_host(Duration::ZERO, &ack(1, 1, 1000 + number * 100, &[]));
        }
        chain.set_path(Duration::ZERO, &Path::default());
        if renewed {
            chain.renew();
        }
        let mut out = Vec::new();
        chain.poll_message(Duration::ZERO, 1300, &mut out);
        assert_eq!(out, ack(1, 1, 1900, &[]));
    }
}

#[test]
fn without_room_nothing_else_takes_the_place() {
    let layer = QueueLayer::new(
        "ack_reconstruction",
        0,
        Rule::ALWAYS,
        Collapse::new(Config::default()),
    );
    let mut chain = Chain::new(Vec::new(), vec![layer], Queue::new(130, None), Vec::new());
    let damaged = tcp::tests::damaged(&ack(1, 1, 1000, &[]));
    let data = ack(1, 1, 900, &[0; 20]);
    chain.from_host(Duration::ZERO, &data);
    chain.from_host(Duration::ZERO, &ack(1, 1, 1000, &[]));
    let mut out = Vec::new();
    chain.poll_message(Duration::ZERO, 1300, &mut out);
    chain.from_host(Duration::ZERO, &damaged);
    chain.from_host(Duration::ZERO, &ack(1, 1, 2000, &[]));
    chain.poll_message(Duration::ZERO, 1300, &mut out);
    assert_eq!(out, [data, damaged].concat());
}

#[test]
fn those_of_a_message_are_counted_though_others_came_behind() {
    let mut chain = chain();
    for number in 0..10u32 {
        chain.from_host(Duration::ZERO, &ack(1, 1, 1000 + number * 100, &[]));
    }
    chain.from_host(Duration::ZERO, &ack(1, 1, 1900, b"data"));
    let (messages, packets) = carry(&mut chain, Duration::ZERO);
    assert_eq!((messages, packets.len()), (2, 11));
}

#[test]
fn what_is_alone_or_says_more_goes_as_it_is() {
    let mut chain = chain();
    let mut packets = vec![
        ack(1, 1, 1000, &[]),
        ack(2, 1, 1000, &[]),
        ack(1, 1, 1000, &[]), // A duplicate.
        ack(1, 1, 1000, b"x"),
        ack(1, 2, 900, &[]), // An old one.
        vec![0x45, 0, 0],
    ];
    let mut fin = ack(1, 2, 1100, &[]);
    let header = 20;
    fin[header + 13] |= flags::FIN;
    tcp::seal(&mut fin);
    packets.push(fin);
    let mut congested = ack(1, 3, 1200, &[]);
    congested[header + 13] |= flags::ECE;
    tcp::seal(&mut congested);
    packets.push(congested);
    for packet in &packets {
        chain.from_host(Duration::ZERO, packet);
    }
    let mut out = Vec::new();
    for packet in packets {
        out.clear();
        assert!(chain.poll_message(Duration::ZERO, 1300, &mut out).is_some());
        assert_eq!(out, packet);
    }
}

/// Sets this mark in its IP header.
fn marked(mut packet: Vec<u8>, ecn: Ecn) -> Vec<u8> {
    let before = u16::from_be_bytes([packet[0], packet[1]]);
    packet[1] |= ecn as u8;
    let after = u16::from_be_bytes([packet[0], packet[1]]);
    checksum::replace_u16(&mut packet, 10, before, after);
    packet
}

#[test]
fn marks_of_acknowledgements_and_closed_windows_go_as_they_are() {
    let mut closed = ack(1, 1, 3000, &[]);
    tcp::set_window(&mut closed, 0);
    let cases = [
        (ack(1, 1, 1000, &[]), ack(1, 1, 2000, &[]), 1),
        (ack(1, 1, 1000, &[]), closed, 2),
        (
            ack(1, 1, 1000, &[]),
            marked(ack(1, 1, 2000, &[]), Ecn::Ect0),
            2,
        ),
        (
            marked(ack(1, 1, 1000, &[]), Ecn::Ect0),
            marked(ack(1, 1, 2000, &[]), Ecn::Ect0),
            1,
        ),
        (
            marked(ack(1, 1, 1000, &[]), Ecn::Ce),
            marked(ack(1, 1, 2000, &[]), Ecn::Ect0),
            2,
        ),
        (
            marked(ack(1, 1, 1000, &[]), Ecn::Ce),
            marked(ack(1, 1, 2000, &[]), Ecn::Ce),
            2,
        ),
        // Bytes have a mark of their own.
        (
            marked(ack(1, 1, 1000, b"data"), Ecn::Ect0),
            ack(1, 5, 2000, &[]),
            1,
        ),
        (
            marked(ack(1, 1, 1000, b"data"), Ecn::Ect0),
            marked(ack(1, 5, 2000, &[]), Ecn::Ce),
            2,
        ),
    ];
    for (number, (first, second, expected)) in cases.into_iter().enumerate() {
        let mut chain = chain();
        chain.from_host(Duration::ZERO, &first);
        chain.from_host(Duration::ZERO, &second);
        let mut out = Vec::new();
        let mut messages = Vec::new();
        while chain.poll_message(Duration::ZERO, 1300, &mut out).is_some() {
            messages.push(std::mem::take(&mut out));
        }
        assert_eq!(messages.len(), expected, "case {number}");
        if expected == 2 {
            assert_eq!(messages, [first, second], "case {number}");
        }
    }
}

#[test]
fn an_acknowledgement_goes_with_bytes_that_wait() {
    let mut chain = chain();
    chain.from_host(Duration::ZERO, &ack(9, 1, 1, b"other host..."));
    chain.from_host(Duration::ZERO, &ack(1, 1, 1000, b"data"));
    chain.from_host(Duration::ZERO, &ack(1, 5, 2000, &[]));
    // Not for the end of these bytes: it stays separate.
    chain.from_host(Duration::ZERO, &ack(1, 9, 3000, &[]));
    let (messages, packets) = carry(&mut chain, Duration::ZERO);
    assert_eq!(messages, 3);
    let packets: Vec<_> = packets.into_iter().map(|(_, packet)| packet).collect();
    assert_eq!(numbers(&packets), [1, 2000, 3000]);
    assert_eq!(packets[1].bytes, ack(1, 1, 2000, b"data"));
}

#[test]
fn connections_keep_their_order_and_numbers_only_grow() {
    let mut done = BTreeMap::new();
    for seed in 0..200u64 {
        let mut state = seed.wrapping_mul(2) + 1;
        let mut draw = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(3);
            (state >> 33) % below
        };
        let mut chain = chain();
        let mut at = BTreeMap::new();
        let mut receiver = receiver();
        let mut got: BTreeMap<u16, u32> = BTreeMap::new();
        for step in 0..300u64 {
            let now = Duration::from_millis(step * 3);
            receiver.on_time(now);
            if draw(3) > 0 {
                let port = draw(4) as u16 + 1;
                let (seq, number) = at.entry(port).or_insert((1u32, u32::MAX - 5000));
                *number = number.wrapping_add([0, 100, 1000][draw(3) as usize]);
                let data: &[u8] = if draw(6) == 0 { b"bytes" } else { b"" };
                chain.from_host(now, &ack(port, *seq, *number, data));
                *seq = seq.wrapping_add(data.len() as u32);
            } else {
                let mut out = Vec::new();
                if chain.poll_message(now, 1300, &mut out).is_some() {
                    receiver.handle(now, &out, Ecn::NotEct);
                }
            }
            while let Some(packet) = receiver.poll_packet() {
                let tcp = Tcp::parse(Ip::parse(&packet.bytes).unwrap()).unwrap();
                let last = got.insert(tcp.ip.key().from.1, tcp.ack).unwrap_or(tcp.ack);
                assert!(!is_after(last, tcp.ack), "seed {seed}: {last} {}", tcp.ack);
            }
        }
        chain.counters(&mut |_, name, count| *done.entry(name).or_default() += count);
        receiver.counters(&mut |_, name, count| *done.entry(name).or_default() += count);
    }
    let many = |name| done.get(name).is_some_and(|count: &u64| *count > 500);
    assert!(
        many("collapsed") && many("on_data") && many("made"),
        "{done:?}"
    );
}

#[test]
fn a_return_path_too_slow_for_single_acknowledgements_carries_them_merged() {
    // 830 packets per second are acknowledged each; the return path takes 5 messages per second.
    let (mut chain, mut receiver) = (chain(), receiver());
    let mut arrived = 0;
    for tick in 0..5000u32 {
        let now = Duration::from_micros(u64::from(tick) * 1200);
        chain.from_host(now, &ack(1, 1, tick * 1448, &[]));
        receiver.on_time(now);
        if tick % 166 == 165 {
            let mut out = Vec::new();
            if chain.poll_message(now, 1300, &mut out).is_some() {
                receiver.handle(now, &out, Ecn::NotEct);
            }
        }
        while receiver.poll_packet().is_some() {
            arrived += 1;
        }
    }
    // All but those that still wait, or are still to be regenerated.
    assert!((4500..=5000).contains(&arrived), "{arrived}");
    assert!(chain.queued(Duration::from_secs(6)).0 < 1000);
}

#[test]
fn rubbish_is_dropped_and_counted() {
    let mut booster = Regenerate::new(4);
    let mut out = Out::default();
    let mut state = 5u64;
    let good = ack(1, 1, 1000, &[]);
    let mut made = 0;
    for round in 0..20_000u32 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let mut bytes = vec![ACKS];
        bytes.extend_from_slice(&state.to_be_bytes()[..6]);
        bytes.extend_from_slice(&(round % 9).to_be_bytes());
        bytes.extend_from_slice(&good[..(state >> 50) as usize % (good.len() + 1)]);
        let at = (state >> 20) as usize % bytes.len();
        if round % 4 > 0 {
            bytes[at.max(1)] ^= (state >> 8) as u8;
        }
        let now = Duration::from_millis(round.into());
        booster.up(
            now,
            Packet {
                bytes,
                ..Packet::default()
            },
            &mut out,
        );
        booster.on_time(now, &mut out);
        assert!(out.up.len() <= 6 * usize::from(regenerate::MADE_MAX));
        made += out.up.len();
        out.up.clear();
    }
    assert!(booster.unreadable > 1000 && made > 1000);
    assert!(booster.flows.len() <= 4 && booster.due.len() <= 4);
}

/// Combined with the acknowledgement filter, which is on while loss is low.
fn both(queue: usize) -> Chain {
    use crate::{
        ack_filter, rule,
        settings::{self, Boosted, Settings},
    };
    let mut chain = settings::chain(&Settings {
        queue,
        deadline: Duration::from_secs(10),
        ack_filter: Some(Boosted {
            rule: Rule::ALWAYS,
            config: ack_filter::Config::default(),
        }),
        ack_reconstruction: Some(Boosted {
            rule: Rule {
                when: rule::When::Rule,
                loss_above: "1%".parse().ok(),
                after: Duration::ZERO,
                ..Rule::ALWAYS
            },
            config: Config::default(),
        }),
        ..Settings::default()
    });
    set_loss(&mut chain, 0.1);
    chain
}

fn set_loss(chain: &mut Chain, loss: f64) {
    let path = Path {
        abilities: Abilities::ALL,
        loss,
        ..Path::default()
    };
    chain.set_path(Duration::ZERO, &path);
}

#[test]
fn with_the_filter_they_are_merged_and_regenerated() {
    let mut chain = both(1 << 20);
    for number in 0..10u32 {
        chain.from_host(Duration::ZERO, &ack(1, 1, 1000 + number * 100, &[]));
    }
    // Old ones and surplus duplicates are handled by the filter.
    for _ in 0..20 {
        chain.from_host(Duration::ZERO, &ack(1, 1, 1900, &[]));
        chain.from_host(Duration::ZERO, &ack(1, 1, 1200, &[]));
    }
    let (messages, packets) = carry(&mut chain, Duration::ZERO);
    // The merged one, nine duplicates, and every sixth of those beyond.
    assert_eq!((messages, packets.len()), (11, 20));
}

#[test]
fn data_arrive_through_a_short_queue_though_rules_go_off_and_on() {
    for seed in 0..100u64 {
        let mut chain = both(400);
        let mut state = seed.wrapping_mul(2) + 1;
        let mut draw = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(3);
            (state >> 33) % below
        };
        let (mut seq, mut number, mut sent, mut came) = (1, 1000, 0, 0);
        let has_data = |bytes: &[u8]| bytes.first() == Some(&0x45) && bytes.len() > 40;
        for step in 0..400u64 {
            let now = Duration::from_millis(step);
            match draw(8) {
                0 => set_loss(&mut chain, [0.0, 0.1][draw(2) as usize]),
                1 | 2 => {
                    sent += 1;
                    chain.from_host(now, &ack(1, seq, number, b"data"));
                    seq += 4;
                }
                3 | 4 => {
                    let mut out = Vec::new();
                    chain.poll_message(now, 1300, &mut out);
                    came += u64::from(has_data(&out));
                }
                _ => {
                    number += 100;
                    chain.from_host(now, &ack(1, seq, number, &[]));
                }
            }
        }
        let mut out = Vec::new();
        while chain
            .poll_message(Duration::from_millis(400), 1300, &mut out)
            .is_some()
        {
            came += u64::from(has_data(&out));
            out.clear();
        }
        let dropped = chain.stats().dropped_full;
        assert!(
            came <= sent && came + dropped >= sent,
            "{seed}: {came} {dropped} of {sent}"
        );
        assert!(dropped > 0);
    }
}

/// Returns a message of a peer that makes a thousand acknowledgements.
fn thousand(port: u16, span: u32) -> Vec<u8> {
    let newest = ack(port, 1, 1_001_000, &[]);
    let begin = [
        &[ACKS][..],
        &1000_u16.to_be_bytes(),
        &1000_u32.to_be_bytes(),
    ]
    .concat();
    [&begin[..], &span.to_be_bytes(), &newest].concat()
}

#[test]
fn what_is_late_or_due_at_once_leaves_in_few_acknowledgements() {
    let mut receiver = Receiver::new(vec![Layer::new(
        "ack_reconstruction",
        0,
        Rule::ALWAYS,
        Regenerate::new(1024),
    )]);
    let left = |receiver: &mut Receiver| {
        let packets: Vec<_> = std::iter::from_fn(|| receiver.poll_packet()).collect();
        numbers(&packets)
    };
    for port in 1..=100 {
        receiver.handle(Duration::ZERO, &thousand(port, 10_000_000), Ecn::NotEct);
    }
    assert_eq!(left(&mut receiver), vec![1000; 100]);
    let late = Duration::from_secs(9);
    let mut all = Vec::new();
    while receiver.deadline().is_some_and(|at| at <= late) {
        receiver.on_time(late);
        let at_once = left(&mut receiver);
        assert!(at_once.len() <= 64, "{} at once", at_once.len());
        all.extend(at_once);
    }
    assert_eq!(all.len(), 100, "one for each connection");
    assert!(
        all.iter().all(|number| (895_000..905_000).contains(number)),
        "{all:?}"
    );
    // Behind these, another packet of the connection.
    receiver.handle(late, &ack(1, 1, 1_001_000, &[7]), Ecn::NotEct);
    let rest = left(&mut receiver);
    assert!(
        rest.len() <= 65 && rest.is_sorted() && rest.ends_with(&[1_001_000; 2]),
        "{rest:?}"
    );
    receiver.handle(late, &thousand(200, 0), Ecn::NotEct);
    assert!(left(&mut receiver).len() <= 65);
}
