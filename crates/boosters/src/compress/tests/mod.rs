//! Packets through a sender and a receiver, in virtual time.

mod packets;

use std::time::Duration;

use splitmix::SplitMix64;

use self::packets::{any_packet, ip, set_id, tcp, text, udp};
use super::*;
use crate::{
    booster::{Booster, Out},
    packet::Packet,
    rule::Path,
    wire::{Abilities, COMPRESSED, CONTEXT, CONTEXT_KNOWN, NO_CONTEXT},
};

fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

fn down(sender: &mut Sender, now: Duration, bytes: &[u8]) -> Packet {
    let mut out = Out::default();
    sender.down(now, Packet::new(bytes.to_vec(), now), &mut out);
    assert!(out.up.is_empty() && out.down.len() == 1);
    out.down.remove(0)
}

fn up(receiver: &mut Receiver, now: Duration, message: Packet) -> (Option<Vec<u8>>, Vec<Packet>) {
    let mut out = Out::default();
    receiver.up(now, message, &mut out);
    assert!(out.up.len() <= 1 && out.down.len() <= 1);
    (out.up.pop().map(|packet| packet.bytes), out.down)
}

fn counter(booster: &dyn Booster, name: &str) -> u64 {
    let mut found = None;
    booster.counters(&mut |each, value| {
        if each == name {
            found = Some(value);
        }
    });
    found.expect(name)
}

/// Returns the length of the message for the last of some packets of a flow.
fn settled(config: Config, mut packet: impl FnMut(u32) -> Vec<u8>) -> usize {
    let (mut sender, mut receiver) = (Sender::new(config), Receiver::new());
    let mut last = 0;
    for n in 1..=20 {
        let bytes = packet(n);
        let message = down(&mut sender, ms(u64::from(n) * 20), &bytes);
        last = message.bytes.len();
        let (came, _) = up(&mut receiver, ms(u64::from(n) * 20), message);
        assert_eq!(came, Some(bytes));
    }
    last
}

#[test]
fn headers_take_six_bytes_or_eight() {
    let config = Config::default();
    let mut draws = SplitMix64::new(1);
    let payload = draws.bytes(160);
    assert_eq!(settled(config, |_| udp(false, 1, &payload)), 160 + 6);
    assert_eq!(settled(config, |_| udp(true, 1, &payload)), 160 + 6);
    let with_id = |n: u32| {
        let mut packet = udp(false, 1, &payload);
        set_id(&mut packet, n as u16);
        packet
    };
    assert_eq!(settled(config, with_id), 160 + 8);
    // Acknowledgements of 52 and 72 bytes, with timestamps.
    assert_eq!(tcp(false, 1, 1, &[]).len(), 52);
    assert_eq!(settled(config, |n| tcp(false, 1, n, &[])), 26);
    assert_eq!(settled(config, |n| tcp(true, 1, n, &[])), 26);
    let esp = |n: u32| {
        let mut out = Vec::new();
        let payload = [&n.to_be_bytes(), &payload[..]].concat();
        let builder = ip(false, 1);
        builder
            .write(&mut out, etherparse::IpNumber(50), &payload)
            .expect("fits");
        out
    };
    assert_eq!(settled(config, esp), 164 + 4);
    // A page of 1400 bytes.
    let mut page = 0;
    let len = settled(config, |n| {
        page += 1;
        tcp(false, 1, n, &text(page, 1400))
    });
    assert!((250..500).contains(&len), "{len} of 1452");
    let headers_only = Config {
        payload: false,
        ..config
    };
    assert_eq!(
        settled(headers_only, |n| tcp(true, 1, n, &text(1, 1400))),
        1426
    );
    let payload_only = Config {
        headers: false,
        ..config
    };
    let len = settled(payload_only, |n| tcp(true, 1, n, &text(1, 1400)));
    assert!((300..600).contains(&len), "{len} of 1472");
}

#[test]
fn speech_and_acknowledgements_over_a_minute_with_all_that_is_sent_for_contexts() {
    let mut draws = SplitMix64::new(3);
    for (name, header, most) in [("v4", 28, 8.4), ("v6", 48, 6.8)] {
        let mut sender = Sender::new(Config::default());
        for n in 0..3000u64 {
            let mut packet = udp(name == "v6", 1, &draws.bytes(160));
            if name == "v4" {
                set_id(&mut packet, n as u16);
            }
            down(&mut sender, ms(n * 20), &packet);
        }
        let per = counter(&sender, "bytes_out") as f64 / 3000.0 - 160.0;
        assert!(per < most, "{name}: {per} of {header} bytes");
        assert_eq!(
            counter(&sender, "contexts"),
            4 + 8,
            "after 1, 2, 4, 8, 10 s ..."
        );
        assert!(counter(&sender, "payloads_not_smaller") < 80);
    }
}

#[test]
fn what_goes_in_comes_out_to_the_bit() {
    for seed in 1..=300 {
        let mut draws = SplitMix64::new(seed);
        let config = Config {
            level: draws.below(8) as i32,
            headers: draws.below(8) > 0,
            payload: draws.below(2) > 0,
            flows_max: draws.below(12) as usize * draws.below(60) as usize,
        };
        let (mut sender, mut receiver) = (Sender::new(config), Receiver::new());
        for n in 0..300 {
            let packet = any_packet(&mut draws);
            let message = down(&mut sender, ms(n * 20), &packet);
            assert!(message.bytes.len() <= packet.len() + 5);
            let (came, replies) = up(&mut receiver, ms(n * 20), message);
            assert_eq!(came, Some(packet), "seed {seed}, packet {n}");
            for reply in replies {
                assert_eq!(reply.bytes[0], CONTEXT_KNOWN);
                if n % 3 > 0 {
                    sender.up(ms(n * 20), reply, &mut Out::default());
                }
            }
        }
        assert_eq!(
            counter(&receiver, "malformed") + counter(&receiver, "unknown"),
            0
        );
    }
}

/// Returns messages after a path that loses, duplicates and delays some, each with its arrival
/// (ms).
fn harm(
    draws: &mut SplitMix64,
    now: u64,
    message: &Packet,
    loss: u64,
    all: &mut Vec<(u64, Packet)>,
) {
    if draws.below(100) >= loss {
        all.push((now + 30 + draws.below(60), message.clone()));
    }
    if draws.below(100) < 5 {
        all.push((now + 30 + draws.below(400), message.clone()));
    }
}

/// Returns packets of flows that number them, so that a wrong one is recognised.
fn numbered(draws: &mut SplitMix64, hosts: u64, n: u32) -> Vec<u8> {
    let host = draws.below(hosts) as u8;
    let v6 = host.is_multiple_of(2);
    if host.is_multiple_of(3) {
        tcp(v6, host, n, &text(n.into(), 200))
    } else {
        udp(v6, host, &[&n.to_be_bytes()[..], &[host; 60]].concat())
    }
}

#[test]
fn loss_reordering_and_repetition_harm_none_but_what_they_befall() {
    for seed in 1..=40 {
        let mut draws = SplitMix64::new(seed);
        // More flows than contexts in every other run, so that they are reassigned all the time.
        let flows_max = [64, 8][seed as usize % 2];
        let config = Config {
            flows_max,
            ..Config::default()
        };
        let (mut sender, mut receiver) = (Sender::new(config), Receiver::new());
        let (mut sent, mut arrivals) = (std::collections::BTreeSet::new(), Vec::new());
        let mut replies: Vec<(u64, Packet)> = Vec::new();
        let (mut given, mut came) = (0u32, 0u32);
        for n in 0..3000u32 {
            let now = u64::from(n) * 5;
            while let Some(at) = replies.iter().position(|(at, _)| *at <= now) {
                let mut out = Out::default();
                sender.up(ms(now), replies.remove(at).1, &mut out);
                assert!(out.up.is_empty() && out.down.is_empty());
            }
            let packet = numbered(&mut draws, 16, n);
            let message = down(&mut sender, ms(now), &packet);
            sent.insert(packet);
            harm(&mut draws, now, &message, 10, &mut arrivals);
            arrivals.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
            while let Some((at, message)) = arrivals.pop_if(|(at, _)| *at <= now) {
                came += 1;
                let (packet, asked) = up(&mut receiver, ms(at), message);
                replies.extend(asked.into_iter().map(|reply| (at + 100, reply)));
                if let Some(packet) = packet {
                    assert!(sent.contains(&packet), "seed {seed}");
                    given += 1;
                }
            }
        }
        let (unknown, asked) = (counter(&receiver, "unknown"), counter(&sender, "requests"));
        assert_eq!(u64::from(came - given), unknown);
        assert_eq!(counter(&receiver, "malformed"), 0);
        let most = if flows_max == 64 { 10 } else { 60 };
        assert!(unknown <= most, "{unknown} of {came}, seed {seed}");
        assert!(asked <= counter(&receiver, "requests"));
    }
}

/// Sends speech at 50 packets per second over a round trip of 100 ms, and runs `at` at 2 s. Returns
/// the number of lost packets.
fn lost_at_restart(mut at: impl FnMut(&mut Sender, &mut Receiver), hears: bool) -> u64 {
    let (mut sender, mut receiver) = (Sender::new(Config::default()), Receiver::new());
    let (mut replies, mut lost) = (Vec::<(u64, Packet)>::new(), 0);
    for n in 0..3000u64 {
        let now = n * 20;
        while let Some(first) = replies.iter().position(|(at, _)| hears && *at <= now) {
            let reply = replies.remove(first).1;
            sender.up(ms(now), reply, &mut Out::default());
        }
        if n == 100 {
            at(&mut sender, &mut receiver);
        }
        let packet = udp(true, 1, &n.to_be_bytes());
        let message = down(&mut sender, ms(now), &packet);
        let (came, asked) = up(&mut receiver, ms(now + 50), message);
        replies.extend(asked.into_iter().map(|reply| (now + 100, reply)));
        assert!(came.is_none() || came == Some(packet));
        lost += u64::from(came.is_none());
    }
    assert_eq!(counter(&receiver, "unknown"), lost);
    lost
}

#[test]
fn a_restart_of_either_end_costs_a_round_trip_at_most() {
    let restart = |_: &mut Sender, receiver: &mut Receiver| *receiver = Receiver::new();
    assert_eq!(lost_at_restart(restart, true), 5);
    // It is repeated 1, 3 and 7 s after its first time, with packet 14, requested or not.
    assert_eq!(lost_at_restart(restart, false), 64);
    let reported = |sender: &mut Sender, receiver: &mut Receiver| {
        *receiver = Receiver::new();
        let path = |abilities| Path {
            abilities,
            ..Path::default()
        };
        sender.set_path(ms(2000), &path(0));
        sender.set_path(ms(2000), &path(Abilities::ALL));
    };
    assert_eq!(lost_at_restart(reported, false), 0);
    let other = |sender: &mut Sender, _: &mut Receiver| *sender = Sender::new(Config::default());
    assert_eq!(lost_at_restart(other, false), 0);
}

/// Sends speech at 50 packets per second over a round trip of 100 ms. `lost` packets from `first`
/// on are lost; all others must come. Returns how many of 200 were longer than necessary.
fn after_burst(confirms: bool, first: u64, lost: u64) -> usize {
    let (mut sender, mut receiver) = (Sender::new(Config::default()), Receiver::new());
    let abilities = match confirms {
        true => Abilities::ALL,
        false => Abilities::ALL & !Abilities::CONFIRM,
    };
    let path = Path {
        abilities,
        ..Path::default()
    };
    sender.set_path(ms(0), &path);
    let (mut replies, mut long) = (Vec::<(u64, Packet)>::new(), 0);
    for n in 0..200u64 {
        let now = n * 20;
        while let Some(due) = replies.iter().position(|(at, _)| *at <= now) {
            sender.up(ms(now), replies.remove(due).1, &mut Out::default());
        }
        let packet = udp(true, 1, &[&n.to_be_bytes()[..], &[7; 30]].concat());
        let message = down(&mut sender, ms(now), &packet);
        long += usize::from(message.bytes.len() >= packet.len());
        if (first..first + lost).contains(&n) {
            continue;
        }
        let (came, answers) = up(&mut receiver, ms(now + 50), message);
        assert_eq!(came, Some(packet), "{n} after {lost} from {first}");
        replies.extend(answers.into_iter().map(|reply| (now + 100, reply)));
    }
    assert_eq!(counter(&receiver, "unknown"), 0);
    long
}

#[test]
fn a_burst_of_losses_takes_no_more_than_what_is_in_it() {
    for first in 0..30 {
        // Without a confirmation, only as many as the announcements are spread over.
        for lost in 0..12 {
            let long = after_burst(false, first, lost);
            assert!(long <= 15 + 1, "{long}");
        }
        for lost in [0, 1, 7, 12, 20, 50, 100] {
            let long = after_burst(true, first, lost);
            // Until an announcement comes, possibly one of the last of as many as were lost, and a
            // round trip more.
            assert!(long <= 2 * (first + lost) as usize + 10, "{long}");
        }
    }
    // The round trip alone.
    assert!(after_burst(true, 0, 0) <= 8);
}

#[test]
fn contexts_do_not_go_round_where_there_are_more_flows() {
    let (mut sender, mut receiver) = (Sender::new(Config::default()), Receiver::new());
    let mut compressed = 0;
    for n in 0..300u32 * 100 {
        let mut packet = udp(false, 1, &[]);
        packet[20..24].copy_from_slice(&(n % 300).to_be_bytes());
        let message = down(&mut sender, ms(n.into()), &packet);
        compressed += u32::from(n >= 300 * 50 && message.bytes[0] == COMPRESSED);
        let (came, replies) = up(&mut receiver, ms(n.into()), message);
        assert_eq!(came, Some(packet));
        for reply in replies {
            sender.up(ms(n.into()), reply, &mut Out::default());
        }
    }
    assert_eq!(counter(&sender, "flows_evicted"), 0);
    assert!(counter(&sender, "flows_refused") > 4000);
    // All of 256 of 300, except for repeated contexts.
    assert!(compressed > 256 * 50 * 9 / 10, "{compressed}");
    // Once these flows have ended, others get their contexts.
    for n in 0..2000u32 {
        let packet = udp(true, (n % 20) as u8, &[]);
        down(&mut sender, ms(40_000), &packet);
    }
    assert_eq!(counter(&sender, "flows_evicted"), 20);
}

#[test]
fn a_context_is_asked_for_once_in_a_while() {
    let (mut sender, mut receiver) = (Sender::new(Config::default()), Receiver::new());
    let mut asked = 0;
    for n in 0..1000u64 {
        let message = down(&mut sender, ms(n), &udp(false, 1, &[1; 20]));
        let kind = match n {
            1 | 2 | 6 | 14 => CONTEXT,
            0..15 => 0x45,
            _ => COMPRESSED,
        };
        assert_eq!(message.bytes[0], kind);
        if kind == COMPRESSED {
            let (came, replies) = up(&mut receiver, ms(n), message);
            assert_eq!(came, None);
            asked += replies.len();
        }
    }
    assert_eq!((asked, counter(&receiver, "requests")), (10, 10));
    assert_eq!(counter(&receiver, "unknown"), 985);
    // Of another generation, of no context, too long: rejected.
    for reply in [&[0, 0, 99][..], &[9, 9, 9], &[0, 0], &[0; 9], &[]] {
        let bytes = [&[NO_CONTEXT], reply].concat();
        sender.up(ms(0), Packet::new(bytes, ms(0)), &mut Out::default());
    }
    assert_eq!(
        (
            counter(&sender, "requests"),
            counter(&sender, "requests_unanswered")
        ),
        (5, 5)
    );
}

#[test]
fn flows_of_one_packet_are_left_alone_and_drive_none_out() {
    let config = Config {
        flows_max: 4,
        ..Config::default()
    };
    let mut sender = Sender::new(config);
    for n in 0..1000u32 {
        let now = ms(u64::from(n) * 20);
        let mut scan = udp(false, 7, &[]);
        scan[20..24].copy_from_slice(&n.to_be_bytes());
        assert_eq!(down(&mut sender, now, &scan).bytes, scan);
        down(&mut sender, now, &udp(true, 1, &[1; 20]));
    }
    assert_eq!(counter(&sender, "flows"), 1);
    assert_eq!(
        (counter(&sender, "plain"), counter(&sender, "flows_evicted")),
        (1000, 0)
    );
}

#[test]
fn what_is_random_is_soon_left_alone_and_text_is_not() {
    let mut draws = SplitMix64::new(4);
    let mut sender = Sender::new(Config::default());
    for n in 0..20_000u32 {
        let now = ms(u64::from(n));
        let payload = draws.bytes(160);
        down(&mut sender, now, &udp(false, 1, &payload));
        if n % 10 == 0 {
            down(&mut sender, now, &tcp(false, 2, n, &text(n.into(), 600)));
        }
    }
    assert_eq!(counter(&sender, "payloads_compressed"), 2000);
    // 8, then 64, 128 ... 4096 are skipped before 8 more.
    assert!(counter(&sender, "payloads_not_smaller") <= 8 * 11);
}

#[test]
fn wide_numbers_and_the_most_flows() {
    let config = Config {
        flows_max: usize::MAX,
        ..Config::default()
    };
    let (mut sender, mut receiver) = (Sender::new(config), Receiver::new());
    let mut shortest = [usize::MAX; 2];
    for n in 0..5000u32 * 20 {
        let mut packet = udp(false, 1, &[]);
        packet[20..24].copy_from_slice(&(n / 20).to_be_bytes());
        let message = down(&mut sender, ms(0), &packet);
        let wide = usize::from((256..4096).contains(&(n / 20)));
        shortest[wide] = shortest[wide].min(message.bytes.len());
        assert_eq!(up(&mut receiver, ms(0), message).0, Some(packet));
    }
    assert_eq!(shortest, [6, 7]);
    assert_eq!(counter(&receiver, "flows"), Config::FLOWS_MAX as u64);
    assert_eq!(
        counter(&sender, "flows_evicted"),
        5000 - Config::FLOWS_MAX as u64
    );
}

#[test]
fn hostile_messages_are_dropped_or_give_a_packet_of_bounded_length() {
    let (mut messages, mut draws) = (Vec::new(), SplitMix64::new(9));
    let mut sender = Sender::new(Config::default());
    for n in 0..200u32 {
        let packet = numbered(&mut draws, 10, n);
        messages.push(down(&mut sender, ms(0), &packet).bytes);
    }
    let mut receiver = Receiver::new();
    for n in 0..100_000u64 {
        let mut bytes = messages[draws.below(200) as usize].clone();
        for _ in 0..draws.below(4) {
            let at = draws.below(bytes.len().min(60) as u64) as usize;
            bytes[at] = draws.next_u64() as u8;
        }
        if draws.below(4) == 0 {
            bytes.truncate(draws.below(bytes.len() as u64) as usize);
        }
        if draws.below(10) == 0 {
            let len = draws.below(60) as usize;
            bytes = draws.bytes(len);
            bytes.insert(
                0,
                [COMPRESSED, CONTEXT, NO_CONTEXT][draws.below(3) as usize],
            );
        }
        let kind = bytes.first().copied();
        let mut out = Out::default();
        receiver.up(ms(n), Packet::new(bytes.clone(), ms(n)), &mut out);
        if kind.is_some_and(|kind| kind == COMPRESSED || kind == CONTEXT) {
            let sane =
                |p: &Packet| p.bytes.len() <= 40 + 65_535 && [4, 6].contains(&(p.bytes[0] >> 4));
            assert!(out.up.iter().all(sane));
        } else {
            assert_eq!(out.up[0].bytes, bytes);
        }
    }
    assert!(counter(&receiver, "flows") <= Config::FLOWS_MAX as u64);
}

#[test]
fn a_frame_is_not_unpacked_beyond_a_packet() {
    let mut receiver = Receiver::new();
    for (len, comes) in [(65_000, true), (65_536, false), (10_000_000, false)] {
        let mut plain = vec![0; len];
        plain[0] = 0x45;
        let mut frame = vec![0; len + 1000];
        let size = zstd_safe::compress(&mut frame[..], &plain, 3).expect("fits");
        let message = [&[COMPRESSED, flag::ZSTD], &frame[4..size]].concat();
        let (came, _) = up(&mut receiver, ms(0), Packet::new(message, ms(0)));
        assert_eq!(came, comes.then_some(plain));
    }
    assert_eq!(counter(&receiver, "malformed"), 2);
}
