use std::time::Duration;

use etherparse::PacketBuilder;

use super::*;
use crate::{ip::Ip, queue::Queue, wire::Abilities};

fn udp(port: u16, len: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let builder = PacketBuilder::ipv4([10, 0, 0, 1], [10, 9, 0, 2], 64).udp(4000, port);
    let payload: Vec<u8> = (0..len).map(|i| i as u8).collect();
    builder.write(&mut bytes, &payload).expect("fits");
    bytes
}

fn plain(chains: usize) -> Exchange {
    let patience = Some(Duration::from_secs(1));
    let chain = || {
        Chain::new(
            Vec::new(),
            Vec::new(),
            Queue::new(1 << 20, patience),
            Vec::new(),
        )
    };
    Exchange::new((0..chains).map(|_| chain()).collect())
}

/// Delivers all messages of `from` to `to`, except those lost.
fn carry(from: &mut Exchange, to: &mut Exchange, now: Duration, room: usize) -> usize {
    let mut messages = 0;
    loop {
        let mut out = Vec::new();
        let any = from.poll_word(now, room, &mut out)
            || (0..from.chains.len()).any(|i| from.poll_message(now, i, room, &mut out).is_some());
        if !any {
            return messages;
        }
        assert!(out.len() <= room, "{} of {room} bytes", out.len());
        messages += 1;
        let second = |packet: &[u8]| {
            let ip = Ip::parse(packet)?;
            Some(usize::from(ip.key().to.1 == 9002))
        };
        to.handle(now, out[0], &out[1..], Ecn::NotEct, &mut { second });
    }
}

#[test]
fn both_ends_know_what_the_other_understands_and_then_say_no_more_of_it() {
    let (mut near, mut far) = (plain(1), plain(1));
    let mut said = 0;
    for second in 0..10 {
        let now = Duration::from_secs(second);
        said += carry(&mut near, &mut far, now, 1200);
        said += carry(&mut far, &mut near, now, 1200);
    }
    assert_eq!(near.abilities(), Some(Abilities::ALL));
    assert_eq!(far.abilities(), Some(Abilities::ALL));
    assert!(said <= 6, "{said}");
    assert_eq!((near.word_due(), far.word_due()), (None, None));
    // One end is another process now.
    let mut far = plain(1);
    for second in 10..15 {
        let now = Duration::from_secs(second);
        carry(&mut far, &mut near, now, 1200);
        carry(&mut near, &mut far, now, 1200);
    }
    assert_eq!(far.abilities(), Some(Abilities::ALL));
    assert_eq!((near.word_due(), far.word_due()), (None, None));
}

#[test]
fn packets_come_out_as_they_went_in_also_those_longer_than_the_link_takes() {
    let (mut near, mut far) = (plain(1), plain(2));
    let now = Duration::from_secs(1);
    for (number, len) in [0, 1, 100, 1200, 1473, 9000].into_iter().enumerate() {
        let packet = udp(9001 + number as u16 % 2, len);
        near.from_host(now, 0, &packet);
        carry(&mut near, &mut far, now, 1200);
        let (chain, arrived) = far.poll_host().expect("arrived");
        assert_eq!(arrived.bytes, packet);
        // The answers come from the packet's destination port.
        assert_eq!(chain, number % 2);
        assert!(far.poll_host().is_none());
    }
}

#[test]
fn what_may_not_go_to_hosts_is_of_no_chain() {
    let mut far = plain(2);
    let mut site = |packet: &[u8]| (Ip::parse(packet)?.key().to.1 == 9002).then_some(1);
    for port in [9001, 9002, 9003] {
        let message = udp(port, 100);
        far.handle(Duration::ZERO, 0, &message, Ecn::NotEct, &mut site);
    }
    let (chain, arrived) = far.poll_host().expect("arrived");
    assert_eq!((chain, arrived.bytes), (1, udp(9002, 100)));
    assert!(far.poll_host().is_none());
    let given: Vec<_> = far
        .chains()
        .iter()
        .map(|chain| chain.stats().packets_up)
        .collect();
    assert_eq!(given, [0, 1]);
}

#[test]
fn packets_that_wait_too_long_and_those_for_which_there_is_no_room_are_dropped_and_counted() {
    let mut near = plain(1);
    near.from_host(Duration::ZERO, 0, &udp(1, 100));
    near.from_host(Duration::from_millis(900), 0, &udp(2, 100));
    let mut out = Vec::new();
    let now = Duration::from_millis(1500);
    assert!(near.poll_message(now, 0, 1200, &mut out).is_some());
    assert_eq!(out[1..], udp(2, 100));
    assert!(near.poll_message(now, 0, 1200, &mut out).is_none());
    assert_eq!(near.chains()[0].stats().dropped_late, 1);
    for _ in 0..2000 {
        near.from_host(now, 0, &udp(1, 1000));
    }
    let stats = near.chains()[0].stats();
    assert!(stats.dropped_full > 900, "{stats:?}");
    assert!(near.chains()[0].queued(now).0 <= 1 << 20);
}

#[test]
fn marks_of_the_link_reach_those_who_understand_them() {
    let mut far = plain(1);
    let mut packet = udp(1, 100);
    let site = &mut |_: &[u8]| Some(0);
    far.handle(Duration::ZERO, 0, &packet, Ecn::Ce, site);
    assert!(far.poll_host().is_none());
    packet[1] |= 2;
    crate::checksum::replace_u16(&mut packet, 10, 0x4500, 0x4502);
    far.handle(Duration::ZERO, 0, &packet, Ecn::Ce, site);
    let (_, arrived) = far.poll_host().expect("arrived");
    assert_eq!(arrived.bytes[1] & 3, 3);
    let stats = far.receivers().next().expect("one").1.stats();
    assert_eq!((stats.packets, stats.dropped_congested), (1, 1));
}

#[test]
fn what_makes_no_sense_is_refused_and_counted() {
    let mut far = plain(1);
    let site = &mut |_: &[u8]| Some(7);
    for channel in 0..=255 {
        for message in [&[][..], &[0x45], &[0x01], &[0x99, 1, 2], &[0x02, 1]] {
            far.handle(Duration::ZERO, channel, message, Ecn::NotEct, site);
        }
    }
    assert!(far.poll_host().is_none());
    assert!(far.refused() > 500, "{}", far.refused());
}

/// Returns second fragments of packets whose first ones have headers after the fragment header. The
/// content of these fragments looks like such a header, but is none.
fn second_fragments() -> Vec<Vec<u8>> {
    let payload = [0xff; 64];
    // Destination options, then an authentication header.
    let all = [60, 51].map(|protocol: u8| {
        let mut v6 = vec![0x60, 0, 0, 0, 0, 72, 44, 64];
        v6.extend([0xfd; 15].iter().chain(&[1]));
        v6.extend([0xfd; 15].iter().chain(&[2]));
        v6.extend([protocol, 0, 0x05, 0xa0, 1, 2, 3, 4]);
        v6.extend(payload);
        let mut v4 = vec![0x45, 0, 0, 84, 1, 2, 0, 0xb4, 64, protocol, 0, 0];
        v4.extend([10, 0, 0, 1, 10, 9, 0, 2]);
        v4.extend(payload);
        [v4, v6]
    });
    all.into_iter().flatten().collect()
}

#[test]
fn fragments_that_name_headers_which_are_in_others_go_on() {
    let mut far = plain(2);
    let mut unparsed = 0;
    for packet in second_fragments() {
        unparsed += u32::from(Ip::parse(&packet).is_none());
        let site = &mut |_: &[u8]| Some(1);
        far.handle(Duration::ZERO, 0, &packet, Ecn::NotEct, site);
        let (chain, arrived) = far.poll_host().expect("arrived");
        assert_eq!((chain, arrived.bytes), (1, packet.clone()));
        for cut in [&packet[..packet.len() - 1], &packet[..19], &[]] {
            far.handle(Duration::ZERO, 0, cut, Ecn::NotEct, site);
        }
        let longer = [&packet[..], &[0]].concat();
        far.handle(Duration::ZERO, 0, &longer, Ecn::NotEct, site);
        assert!(far.poll_host().is_none());
    }
    assert!(unparsed >= 2, "{unparsed}");
}

#[test]
fn what_is_held_back_for_hosts_comes_though_other_sessions_begin() {
    let mut exchange = plain(1);
    let mut newest = Vec::new();
    let builder = PacketBuilder::ipv4([10, 9, 0, 2], [10, 0, 0, 1], 64).tcp(80, 9, 1, 500);
    builder.ack(2000).write(&mut newest, &[]).expect("fits");
    // Five acknowledgements, 10 ms from one to the next.
    let mut message = vec![crate::wire::ACKS, 0, 5];
    message.extend_from_slice(&1000u32.to_be_bytes());
    message.extend_from_slice(&40_000u32.to_be_bytes());
    message.extend_from_slice(&newest);
    let mut site = |_: &[u8]| Some(0);
    exchange.handle(Duration::ZERO, 0, &message, Ecn::NotEct, &mut site);
    let mut came = Vec::new();
    exchange.renew();
    exchange.renew();
    while let Some(now) = exchange.deadline() {
        exchange.on_time(now, &mut site);
        came.extend(std::iter::from_fn(|| exchange.poll_host()).map(|_| now));
    }
    let ms = Duration::from_millis;
    assert_eq!(came, [ms(10), ms(10), ms(20), ms(30), ms(40)]);
    assert_eq!(exchange.receivers().count() + exchange.ending.len(), 0);
}

/// Delivers the announcements of one end to the other, unless they are lost.
fn speak(now: Duration, rate: u64, from: &mut Exchange, to: Option<&mut Exchange>) {
    let path = Path {
        rate,
        ..Path::default()
    };
    from.set_path(now, &path);
    let mut word = Vec::new();
    if from.poll_word(now, 100, &mut word)
        && let Some(to) = to
    {
        to.handle(now, word[0], &word[1..], Ecn::NotEct, &mut |_| Some(0));
    }
}

#[test]
fn each_end_hears_how_fast_the_other_sends_and_when_that_changes() {
    let (mut near, mut far) = (plain(1), plain(1));
    let mut rates = |second: u64, rate: u64| {
        for step in 0..500 {
            let now = Duration::from_secs(second) + Duration::from_millis(step * 20);
            // The first of each is lost.
            let arrives = step % 100 > 0;
            speak(now, rate, &mut near, arrives.then_some(&mut far));
            speak(now, 10_000_000, &mut far, arrives.then_some(&mut near));
        }
        let due = near.word_due().is_some() || far.word_due().is_some();
        (near.path.peer_rate, far.path.peer_rate, due)
    };
    let fast = Some(10_000_000);
    assert_eq!(rates(0, 1_000_000), (fast, Some(1_000_000), false));
    assert_eq!(rates(20, 20_000), (fast, Some(20_000), false));
    // Small changes are not announced.
    assert_eq!(rates(40, 21_000), (fast, Some(20_000), false));
}

/// Returns the kinds of messages that leave, with packets and by themselves, in some seconds after
/// the peer has announced its abilities.
fn kinds(near: &mut Exchange, abilities: Option<u32>, begin: Duration) -> Vec<u8> {
    near.introduction.abilities = abilities;
    let mut kinds = std::collections::BTreeSet::new();
    for step in 0..400 {
        let now = begin + Duration::from_millis(step * 10);
        let path = Path {
            loss: 0.05,
            counts: [10_000 + 100 * step, 500 + 5 * step, 450 + 4 * step],
            rate: 1_000_000,
            ..Path::default()
        };
        near.set_path(now, &path);
        near.on_time(now, &mut |_| None);
        // The last second is silent: the ARQ sender then announces its last number.
        if step < 300 {
            near.from_host(now, 0, &udp(9001, 500));
        }
        let mut out = Vec::new();
        while near.poll_message(now, 0, 1200, &mut out).is_some() {
            kinds.insert(out[1]);
            out.clear();
        }
    }
    kinds.into_iter().collect()
}

#[test]
fn a_peer_gets_only_messages_that_it_understands() {
    use crate::{arq, compress, fec, jitter, rule, settings::Boosted, wire};
    fn always<T>(config: T) -> Option<Boosted<T>> {
        Some(Boosted {
            rule: rule::Rule::ALWAYS,
            config,
        })
    }
    let all = settings::Settings {
        queue: 1 << 20,
        deadline: Duration::from_secs(1),
        jitter: always(jitter::Config {
            delay: Duration::from_millis(5),
        }),
        compress: always(compress::Config {
            headers: true,
            payload: true,
            ..compress::Config::default()
        }),
        arq: always(arq::Config::default()),
        fec: always(fec::Config::default()),
        ..settings::Settings::default()
    };
    let plain = [0x45];
    let mut seen = Vec::new();
    for abilities in (0..=Abilities::ALL).map(Some) {
        let mut near = Exchange::new(vec![settings::chain(&all)]);
        let begin = Duration::from_secs(1);
        let kinds = kinds(&mut near, abilities, begin);
        let understood = |kind: &u8| match *kind {
            wire::FEC => Abilities::FEC,
            wire::ARQ => Abilities::ARQ,
            wire::JITTER => Abilities::JITTER,
            wire::COMPRESSED | wire::CONTEXT => Abilities::COMPRESS,
            0x45 => 0,
            other => panic!("{other:#x} leaves"),
        };
        for kind in &kinds {
            let needed = understood(kind);
            assert_eq!(
                abilities.unwrap_or(0) & needed,
                needed,
                "{kind:#x} to {abilities:?}"
            );
        }
        seen.extend(kinds);
        // Of the last packet only the first piece has left. The next session is with a peer without
        // abilities, or before their announcement.
        let end = begin + Duration::from_secs(5);
        near.from_host(end, 0, &udp(9001, 9000));
        near.poll_message(end, 0, 1200, &mut Vec::new());
        near.renew();
        let next = self::kinds(&mut near, None, begin + Duration::from_secs(10));
        assert_eq!(next, plain, "after {abilities:?}");
    }
    for kind in [wire::FEC, wire::ARQ, wire::JITTER, wire::COMPRESSED] {
        assert!(seen.contains(&kind), "{kind:#x} never left");
    }
}
