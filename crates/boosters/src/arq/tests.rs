use std::{collections::BTreeMap, time::Duration};

use fec::theory::Channel;

use super::*;

struct Ran {
    arrived: Vec<(u32, Duration)>,
}

/// Sends messages every 5 ms over a path of 300 ms per direction that loses some.
fn run(config: Config, loss: f64, count: u32) -> Ran {
    let (mut sender, mut receiver) = (Sender::new(config), Receiver::new());
    let path = Path {
        rtt: Duration::from_millis(600),
        ..Path::default()
    };
    sender.set_path(Duration::ZERO, &path);
    let mut draws = Channel::iid(loss).unwrap().draws(3);
    let mut wire: BTreeMap<(Duration, u64), (bool, Packet)> = BTreeMap::new();
    let (mut number, mut sent, mut arrived) = (0u64, 0u32, Vec::new());
    loop {
        let due = Duration::from_millis(5) * sent;
        let next_send = (sent < count).then_some(due);
        let next_wire = wire.first_key_value().map(|((at, _), _)| *at);
        let all = [next_send, next_wire, sender.deadline(), receiver.deadline()];
        let Some(now) = all.into_iter().flatten().min() else {
            return Ran { arrived };
        };
        let mut out = Out::default();
        if next_wire == Some(now) {
            let (_, (down, packet)) = wire.pop_first().unwrap();
            if down {
                receiver.up(now, packet, &mut out);
                for packet in out.up.drain(..) {
                    let number = u32::from_be_bytes(packet.bytes[1..5].try_into().unwrap());
                    arrived.push((number, now));
                }
                for packet in out.down.drain(..) {
                    number += 1;
                    if draws.next() == Some(false) {
                        wire.insert((now + path.rtt / 2, number), (false, packet));
                    }
                }
                continue;
            }
            sender.up(now, packet, &mut out);
            assert!(out.up.is_empty());
        } else if next_send == Some(now) {
            let mut bytes = vec![0x45; 100];
            bytes[1..5].copy_from_slice(&sent.to_be_bytes());
            sender.down(now, Packet::new(bytes, now), &mut out);
            sent += 1;
        } else if sender.deadline() == Some(now) {
            sender.on_time(now, &mut out);
        } else {
            receiver.on_time(now, &mut out);
            for packet in out.up.drain(..) {
                let number = u32::from_be_bytes(packet.bytes[1..5].try_into().unwrap());
                arrived.push((number, now));
            }
            for packet in out.down.drain(..) {
                number += 1;
                if draws.next() == Some(false) {
                    wire.insert((now + path.rtt / 2, number), (false, packet));
                }
            }
            continue;
        }
        for packet in out.down.drain(..) {
            number += 1;
            if draws.next() == Some(false) {
                wire.insert((now + path.rtt / 2, number), (true, packet));
            }
        }
    }
}

#[test]
fn lost_messages_are_retransmitted_once_or_twice_and_none_is_delivered_twice() {
    for loss in [0.01, 0.05, 0.1] {
        for tries in [1, 2] {
            let config = Config {
                tries,
                wait: Duration::from_secs(3),
                ..Config::default()
            };
            let ran = run(config, loss, 20_000);
            let mut numbers: Vec<u32> = ran.arrived.iter().map(|(number, _)| *number).collect();
            numbers.sort_unstable();
            let before = numbers.len();
            numbers.dedup();
            assert_eq!(before, numbers.len(), "duplicate delivered");
            let residual = 1.0 - numbers.len() as f64 / 20_000.0;
            println!("loss {loss}, {tries} tries: residual {residual:.1e}");
            // Lost, and its retransmissions lost too.
            let expected = loss * loss.powi(tries.into());
            assert!(residual < expected * 1.6 + 4e-4, "{residual} {expected}");
            // A first transmission arrives without delay.
            let prompt = ran.arrived.iter().filter(|(number, at)| {
                *at == Duration::from_millis(5) * *number + Duration::from_millis(300)
            });
            let prompt = prompt.count() as f64 / 20_000.0;
            assert!(prompt > 1.0 - loss * 1.2, "{prompt}");
        }
    }
}

#[test]
fn order_is_kept_where_it_is_asked_for() {
    let config = Config {
        order: true,
        wait: Duration::from_secs(2),
        ..Config::default()
    };
    let ran = run(config, 0.05, 5000);
    assert!(ran.arrived.is_sorted_by(|(a, _), (b, _)| a < b));
    assert!(ran.arrived.len() > 4950, "{}", ran.arrived.len());
}

/// Returns numbered messages that carry their number.
fn messages(config: Config, count: u8) -> Vec<Packet> {
    let (mut sender, mut out) = (Sender::new(config), Out::default());
    for number in 0..count {
        let packet = Packet::new(vec![0x45, number], Duration::ZERO);
        sender.down(Duration::ZERO, packet, &mut out);
    }
    out.down
}

#[test]
fn the_first_messages_may_come_in_any_order() {
    for order in [false, true] {
        let config = Config {
            order,
            ..Config::default()
        };
        let all = messages(config, 100);
        let (mut receiver, mut out) = (Receiver::new(), Out::default());
        for message in all[36..].iter().rev().chain(&all[36..]) {
            receiver.up(Duration::ZERO, message.clone(), &mut out);
        }
        let mut came: Vec<_> = out.up.drain(..).map(|packet| packet.bytes[1]).collect();
        came.sort_unstable();
        assert_eq!(came, (36..100).collect::<Vec<_>>());
        // Numbers before these are unknown.
        for message in &all[..35] {
            receiver.up(Duration::ZERO, message.clone(), &mut out);
        }
        assert!(out.up.is_empty() && out.down.is_empty());
    }
}

/// A peer may jump in each message; losses do so seldom.
#[test]
fn jumps_cost_no_more_than_the_messages_have_earned() {
    let mut receiver = Receiver::new();
    let message = |number: u32| {
        let bytes = [&[ARQ, 0][..], &number.to_be_bytes(), &[3, 0xe8, 0x45]].concat();
        Packet::new(bytes, Duration::ZERO)
    };
    let mut out = Out::default();
    receiver.up(Duration::ZERO, message(0), &mut out);
    receiver.up(Duration::ZERO, message(500), &mut out);
    assert_eq!(
        receiver.missing_count(),
        499,
        "one jump, such as after an outage"
    );
    for jump in 1..=100 {
        receiver.up(Duration::ZERO, message(500 + 3000 * jump), &mut out);
    }
    assert_eq!(receiver.missing_count(), 512 + 400);
    assert_eq!(out.up.len(), 102);
    receiver.check_bounds();
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

#[test]
fn what_would_come_too_late_is_not_numbered() {
    let config = Config {
        order: true,
        wait: Duration::from_millis(600),
        ..Config::default()
    };
    // A round trip is as long: nothing is held for a retransmission that would be too late.
    let ran = run(config, 0.05, 5000);
    let held = ran.arrived.iter().filter(|(number, at)| {
        *at != Duration::from_millis(5) * *number + Duration::from_millis(300)
    });
    assert_eq!(held.count(), 0);
    let mut sender = Sender::new(config);
    let mut out = Out::default();
    for rtt in [100, 599, 600, 900, 599] {
        let path = Path {
            rtt: Duration::from_millis(rtt),
            ..Path::default()
        };
        sender.set_path(Duration::ZERO, &path);
        let packet = Packet::new(vec![0x45; 30], Duration::ZERO);
        sender.down(Duration::ZERO, packet, &mut out);
        let numbered = out.down.pop().unwrap().bytes[0] == ARQ;
        assert_eq!(numbered, rtt < 600);
    }
    assert_eq!(counter(&sender, "unnumbered"), 2);
}

#[test]
fn what_is_kept_and_missing_is_bounded() {
    let mut sender = Sender::new(Config {
        cache: 64 << 10,
        order: true,
        wait: Duration::from_secs(65),
        ..Config::default()
    });
    let mut receiver = Receiver::new();
    let mut out = Out::default();
    for number in 0..50_000u32 {
        let now = Duration::from_micros(number.into());
        let len = [1, 1000][number as usize / 25_000];
        sender.down(now, Packet::new(vec![0x45; len], now), &mut out);
        let message = out.down.pop().unwrap();
        if number % 2 == 0 {
            receiver.up(now, message, &mut out);
        }
        out = Out::default();
        assert!(sender.bytes <= 64 << 10 && sender.kept.len() <= (64 << 10) / PLACE);
        receiver.check_bounds();
    }
    // All received messages have been released, or are held within bounds.
    assert!(receiver.held_count() > 1000);
    // One without a message, whose number jumps further and further ahead.
    for step in 0..100u32 {
        let seq = sender.next.wrapping_add(step * 4000);
        let tail = sender.header(TAIL, seq);
        let packet = Packet {
            bytes: tail,
            ..Packet::default()
        };
        receiver.up(Duration::from_secs(1), packet, &mut out);
        receiver.check_bounds();
    }
    let mut state = 1u64;
    for _ in 0..50_000 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let mut bytes = vec![if state & 1 == 0 { ARQ } else { ARQ_AGAIN }];
        bytes.extend_from_slice(&state.to_be_bytes()[..(state >> 20) as usize % 8]);
        bytes.extend_from_slice(&[3; 6]);
        let packet = Packet {
            bytes,
            ..Packet::default()
        };
        let now = Duration::from_millis(state >> 48);
        sender.up(now, packet.clone(), &mut out);
        receiver.up(now, packet, &mut out);
        receiver.check_bounds();
        out = Out::default();
    }
}

/// The first of these messages is lost, and so the others are held.
fn holding(count: u8) -> (Receiver, Sender) {
    let config = Config {
        order: true,
        ..Config::default()
    };
    let (mut sender, mut receiver) = (Sender::new(config), Receiver::new());
    let mut out = Out::default();
    for number in 0..count {
        let packet = Packet::new(vec![0x45, number], Duration::ZERO);
        sender.down(Duration::ZERO, packet, &mut out);
    }
    for (number, message) in out.down.drain(..).enumerate() {
        if number != 1 {
            receiver.up(Duration::ZERO, message, &mut Out::default());
        }
    }
    assert_eq!(receiver.held_count(), usize::from(count) - 2);
    (receiver, sender)
}

/// Returns the numbers of the messages that leave, all due at once, a few with each call.
fn leaving(receiver: &mut Receiver, mut out: Out) -> Vec<u8> {
    let mut left = Vec::new();
    loop {
        let numbers = out.up.drain(..).map(|packet| packet.bytes[1]);
        let before = left.len();
        left.extend(numbers);
        assert!(left.len() - before <= 17, "{left:?}");
        receiver.check_bounds();
        if receiver.deadline().is_none_or(|at| at > Duration::ZERO) {
            return left;
        }
        receiver.on_time(Duration::ZERO, &mut out);
    }
}

/// Later boosters may make a thousand packets of each.
#[test]
fn what_one_message_releases_leaves_in_steps_and_in_order() {
    let (mut receiver, mut sender) = holding(100);
    let mut out = Out::default();
    let second = sender.next.wrapping_sub(99);
    let again = [&[ARQ_AGAIN, 1][..], &second.to_be_bytes()].concat();
    sender.up(Duration::ZERO, Packet::new(again, Duration::ZERO), &mut out);
    let message = out.down.pop().expect("asked for");
    receiver.up(Duration::ZERO, message, &mut out);
    let all: Vec<_> = (1..100).collect();
    assert_eq!(leaving(&mut receiver, out), all);
}

#[test]
fn what_was_held_for_a_sender_that_has_restarted_leaves_in_steps() {
    for ahead in [100_000_000, 0, 5] {
        let (mut receiver, _) = holding(100);
        let config = Config {
            order: true,
            ..Config::default()
        };
        let mut next = Sender::new(config);
        let mut out = Out::default();
        for number in 200..203 {
            next.down(
                Duration::ZERO,
                Packet::new(vec![0x45, number], Duration::ZERO),
                &mut out,
            );
        }
        // The first is far ahead of all before; the third holds behind the second, with numbers
        // that may be those of messages held before.
        let mut messages: Vec<_> = out.down.drain(..).collect();
        for (message, number) in messages.iter_mut().zip([1 << 30, ahead, ahead + 2_u32]) {
            message.bytes[2..6].copy_from_slice(&number.to_be_bytes());
        }
        let mut left = Vec::new();
        for message in messages {
            receiver.up(Duration::ZERO, message, &mut out);
            receiver.check_bounds();
            assert!(out.up.len() <= 17);
            left.extend(out.up.drain(..).map(|packet| packet.bytes[1]));
        }
        left.extend(leaving(&mut receiver, out));
        let old: Vec<_> = left
            .iter()
            .copied()
            .filter(|number| *number < 200)
            .collect();
        assert_eq!(old, (2..100).collect::<Vec<_>>(), "{ahead}");
    }
}

#[test]
fn a_far_end_that_has_forgotten_hears_nothing_of_what_was() {
    let mut sender = Sender::new(Config::default());
    let mut out = Out::default();
    for number in 0..3 {
        let packet = Packet::new(vec![0x45, number], Duration::ZERO);
        sender.down(Duration::ZERO, packet, &mut out);
    }
    assert!(sender.deadline().is_some() && counter(&sender, "kept_bytes") > 0);
    sender.reset();
    assert_eq!(sender.deadline(), None);
    assert_eq!(counter(&sender, "kept_bytes"), 0);
    let seq = |message: &Packet| message.bytes[2..6].to_vec();
    let again = [&[ARQ_AGAIN, 1][..], &seq(&out.down[2])].concat();
    out.down.clear();
    let again = Packet::new(again, Duration::ZERO);
    sender.up(Duration::ZERO, again, &mut out);
    assert!(out.down.is_empty() && counter(&sender, "not_kept") == 1);
}

#[test]
fn messages_of_nothing_are_refused() {
    let sender = Sender::new(Config {
        order: true,
        ..Config::default()
    });
    let (mut receiver, mut out) = (Receiver::new(), Out::default());
    for number in (0..10_000).step_by(2) {
        let packet = Packet {
            bytes: sender.header(0, sender.next.wrapping_add(number)),
            ..Packet::default()
        };
        receiver.up(Duration::ZERO, packet, &mut out);
    }
    assert!(out.up.is_empty());
    assert_eq!(receiver.held_count(), 0);
    assert_eq!(counter(&receiver, "unreadable"), 5000);
}

/// Runs FEC and ARQ together over a link of 50 ms that loses one in twenty, a packet each 5 ms.
/// Returns how many of 20,000 are lost for good, and the number of retransmissions.
fn with_overhead(scheme: crate::fec::Scheme) -> (usize, u64) {
    use crate::{
        rule::Rule,
        stack::{Layer, Stack},
    };
    let always = Rule::ALWAYS;
    let config = crate::fec::Config {
        scheme,
        ..Default::default()
    };
    let mut near = Stack::new(vec![
        Layer::new("arq", 0, always, Sender::new(Config::default())),
        Layer::new("fec", 0, always, crate::fec::Sender::new(config)),
    ]);
    let mut far = Stack::new(vec![
        Layer::new("arq", 0, always, Receiver::new()),
        Layer::new("fec", 0, always, crate::fec::Receiver::new(1500)),
    ]);
    let mut draws = Channel::iid(0.05).unwrap().draws(5);
    let (mut down, mut up) = (VecDeque::new(), VecDeque::new());
    let (mut path, mut came, mut out) = (Path::default(), 0, Out::default());
    for step in 0..205_000u32 {
        let now = Duration::from_micros(500) * step;
        near.set_path(now, &path);
        if step % 10 == 0 && step < 200_000 {
            near.down(now, Packet::new(vec![0x45; 100], now), &mut out);
        }
        near.on_time(now, &mut out);
        while let Some((_, packet)) = up.pop_front_if(|(at, _)| *at <= now) {
            near.up(now, packet, &mut out);
        }
        for packet in out.down.drain(..) {
            let lost = draws.next() == Some(true);
            path.counts[0] += 1;
            path.counts[1] += u64::from(lost);
            path.counts[2] += u64::from(lost);
            if !lost {
                down.push_back((now + Duration::from_millis(50), packet));
            }
        }
        far.on_time(now, &mut out);
        while let Some((_, packet)) = down.pop_front_if(|(at, _): &mut (Duration, _)| *at <= now) {
            far.up(now, packet, &mut out);
        }
        came += out.up.drain(..).count();
        let replies = out.down.drain(..);
        up.extend(replies.map(|packet| (now + Duration::from_millis(50), packet)));
    }
    let mut again = 0;
    near.counters(&mut |_, name, count| again += if name == "retransmitted" { count } else { 0 });
    (20_000 - came, again)
}

#[test]
fn messages_restored_by_fec_are_not_retransmitted() {
    use crate::fec::Scheme;
    for scheme in [
        Scheme::Window { window: 64 },
        Scheme::Block { k: 20, depth: 1 },
        Scheme::Block { k: 20, depth: 4 },
    ] {
        let (lost, again) = with_overhead(scheme);
        println!("{scheme:?}: {lost} lost, {again} retransmitted");
        // The link loses a thousand, some of them before FEC is on.
        assert!(lost <= 3 && again < 100, "{lost} {again}");
    }
}
