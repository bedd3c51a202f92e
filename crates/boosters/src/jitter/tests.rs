//! Packets through a sender, a path that reorders, and a receiver, in virtual time.

use std::time::Duration;

use splitmix::SplitMix64;

use super::*;

const MS: u64 = 1000;

fn us(time: u64) -> Duration {
    Duration::from_micros(time)
}

/// Returns an IP packet of either version that has a number.
fn packet(number: u64) -> Vec<u8> {
    let first = if number.is_multiple_of(2) { 0x45 } else { 0x60 };
    [&[first], &number.to_be_bytes()[..], &[7; 40]].concat()
}

fn number(packet: &Packet) -> u64 {
    u64::from_be_bytes(packet.bytes[1..9].try_into().unwrap())
}

/// Released packets: time (µs) and number.
#[derive(Default)]
struct Exit {
    times: Vec<(u64, u64)>,
}

/// Runs messages, each with its arrival, through a receiver, and calls it at its deadlines.
fn receive(receiver: &mut Receiver, mut messages: Vec<(u64, Packet)>) -> Exit {
    messages.sort_by_key(|(at, _)| *at);
    let (mut exit, mut out) = (Exit::default(), Out::default());
    let mut take = |now: u64, out: &mut Out| {
        assert!(out.down.is_empty());
        let came = out.up.drain(..).map(|packet| (now, number(&packet)));
        exit.times.extend(came);
    };
    let due = |receiver: &Receiver| receiver.deadline().map(|at| at.as_micros() as u64);
    let mut now = 0;
    for (at, packet) in messages {
        while let Some(due) = due(receiver).filter(|due| *due < at) {
            // Not all that is due leaves with a message.
            let due = due.max(now);
            receiver.on_time(us(due), &mut out);
            assert!(!out.up.is_empty(), "no output at a deadline");
            take(due, &mut out);
        }
        receiver.up(us(at), packet, &mut out);
        take(at, &mut out);
        now = at;
    }
    while let Some(due) = due(receiver).map(|due| due.max(now)) {
        receiver.on_time(us(due), &mut out);
        assert!(!out.up.is_empty(), "no output at a deadline");
        take(due, &mut out);
    }
    exit
}

fn send(sender: &mut Sender, number: u64, at: u64) -> Packet {
    let mut out = Out::default();
    sender.down(us(at), Packet::new(packet(number), us(at)), &mut out);
    assert!(out.up.is_empty() && out.down.len() == 1);
    out.down.remove(0)
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

/// Returns the standard deviation of the spacing (µs) of packets from `first` on, which are sent
/// each 20 ms.
fn spacing(exit: &Exit, first: u64) -> f64 {
    let times: Vec<_> = exit.times.iter().filter(|(_, n)| *n >= first).collect();
    let gaps: Vec<_> = times
        .windows(2)
        .map(|w| w[1].0 as f64 - w[0].0 as f64)
        .collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let square = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>();
    (square / gaps.len() as f64).sqrt()
}

/// Returns 50 packets per second over a path of 30 ms and up to 50 ms more, with sending and
/// arrival times.
fn speech(seed: u64, count: u64, ppm: i64) -> Vec<(u64, Packet)> {
    let (mut draws, mut sender) = (SplitMix64::new(seed), Sender::new(Config::default()));
    let one = |n: u64| {
        let sent = n * 20 * MS;
        let stamp = sent as i64 + sent as i64 * ppm / 1_000_000 + 77_000_000_000;
        let arrival = sent + 30 * MS + draws.below(50 * MS + 1);
        (arrival, send(&mut sender, n, stamp as u64))
    };
    (0..count).map(one).collect()
}

#[test]
fn spacing_is_as_it_was_before_a_path_that_jitters_and_reorders() {
    for seed in 1..=10 {
        let messages = speech(seed, 3000, 0);
        let mut order: Vec<_> = messages.iter().map(|(at, p)| (*at, number_of(p))).collect();
        order.sort_unstable();
        assert!(order.windows(2).any(|w| w[0].1 > w[1].1), "reorders");
        let arrivals = Exit { times: order };
        assert!(spacing(&arrivals, 500) > 12_000.0);
        let mut receiver = Receiver::default();
        let exit = receive(&mut receiver, messages);
        let numbers: Vec<_> = exit.times.iter().map(|(_, n)| *n).collect();
        assert!(numbers.is_sorted(), "seed {seed}");
        assert_eq!(numbers.len(), 3000);
        let deviation = spacing(&exit, 500);
        assert!(deviation < 50.0, "{deviation} µs, seed {seed}");
        for (at, n) in &exit.times {
            // The fastest path takes 30 ms, not yet known at the first packets.
            let bound = if *n < 500 { 140 } else { 91 } * MS;
            assert!(at - n * 20 * MS <= bound, "{n}, seed {seed}");
        }
        assert_eq!(counter(&receiver, "late") + counter(&receiver, "forced"), 0);
    }
}

fn number_of(message: &Packet) -> u64 {
    number(&message.with_bytes(message.bytes[HEADER..].to_vec()))
}

#[test]
fn clocks_that_drift_are_followed() {
    for ppm in [-100, 100] {
        let mut receiver = Receiver::default();
        let count = 50 * 3600;
        let exit = receive(&mut receiver, speech(5, count, ppm));
        assert_eq!(exit.times.len(), count as usize);
        assert!(exit.times.windows(2).all(|w| w[0].1 < w[1].1));
        let deviation = spacing(&exit, 1000);
        assert!(deviation < 150.0, "{deviation} µs at {ppm} ppm");
        let late = exit.times.iter().filter(|(_, n)| *n >= 1000);
        let late: Vec<_> = late.map(|(at, n)| at - n * 20 * MS).collect();
        // 30 ms of path and 60 ms of delay; the base lags by at most 20 s of drift.
        assert!(
            late.iter()
                .all(|late| (87 * MS..=91 * MS + 500).contains(late))
        );
        assert_eq!(
            counter(&receiver, "late") + counter(&receiver, "restarts"),
            0
        );
    }
}

#[test]
fn a_sender_that_restarts_or_pauses_is_followed_at_once_or_within_a_second() {
    for (seed, new) in [(1, 5_000_000u64), (2, 3_000_000_000), (3, 77_000_000_000)] {
        let (mut draws, mut sender) = (SplitMix64::new(seed), Sender::new(Config::default()));
        let mut messages = Vec::new();
        for n in 0..2000u64 {
            let sent = n * 20 * MS;
            let stamp = if n < 1000 {
                9_000_000_000 + sent
            } else {
                new + sent
            };
            let arrival = sent + 30 * MS + draws.below(15 * MS);
            messages.push((arrival, send(&mut sender, n, stamp)));
        }
        let mut receiver = Receiver::default();
        let exit = receive(&mut receiver, messages);
        assert_eq!(exit.times.len(), 2000);
        assert_eq!(counter(&receiver, "restarts"), 1);
        let mut late = exit.times.iter().map(|(at, n)| at - n * 20 * MS);
        assert!(late.all(|late| late <= 106 * MS));
        // After a second, and some more for the fastest path.
        assert!(spacing(&exit, 1400) < 150.0);
    }
}

#[test]
fn a_path_that_changes_is_followed() {
    let mut sender = Sender::new(Config::default());
    // 300 ms, then 30 ms, then 250 ms.
    let path = |n: u64| [300, 30, 250][(n / 2000) as usize] * MS;
    let one = |n: u64| {
        let sent = n * 20 * MS;
        (sent + path(n) + (n % 7) * MS, send(&mut sender, n, sent))
    };
    let messages = (0..6000).map(one).collect();
    let mut receiver = Receiver::default();
    let exit = receive(&mut receiver, messages);
    assert_eq!(exit.times.len(), 6000);
    for (at, n) in &exit.times {
        // Exempt: packets held when the path becomes faster, and those that are too late.
        let held = !(1980..2000).contains(n) && !(4000..4052).contains(n);
        let minimum = path(*n) + if held { 60 * MS } else { 0 };
        let late = at - n * 20 * MS;
        assert!(late <= path(*n) + 66 * MS, "{n}: {late}");
        assert!(late >= minimum, "{n}: {late}");
    }
    // On the slower path they are too late for a second.
    let late = counter(&receiver, "late");
    assert!((55..=70).contains(&late), "{late}");
    assert_eq!(counter(&receiver, "slower"), 1);
    // On the faster one the first overtake the last of the slower one.
    let numbers = exit.times.iter().map(|(_, n)| *n).filter(|n| *n >= 2020);
    assert!(numbers.is_sorted());
    assert_eq!(counter(&receiver, "restarts"), 0);
}

#[test]
fn what_comes_too_late_goes_at_once_and_says_nothing_of_the_path() {
    let mut sender = Sender::new(Config::default());
    let mut messages: Vec<_> = (0..500u64)
        .map(|n| (n * 20 * MS + 10, send(&mut sender, n, n * 20 * MS)))
        .collect();
    // One by 100 ms, one by 20 s.
    messages[100].0 += 100 * MS;
    messages[200].0 += 5500 * MS;
    let at = [messages[100].0, messages[200].0];
    let mut receiver = Receiver::default();
    let exit = receive(&mut receiver, messages);
    assert_eq!(exit.times.len(), 500);
    for (time, n) in &exit.times {
        match n {
            100 => assert_eq!(*time, at[0]),
            200 => assert_eq!(*time, at[1]),
            _ => assert_eq!(*time, n * 20 * MS + 10 + 60 * MS),
        }
    }
    assert_eq!(
        (counter(&receiver, "late"), counter(&receiver, "restarts")),
        (2, 0)
    );
    assert_eq!(counter(&receiver, "slower"), 0);
}

#[test]
fn what_is_held_is_bounded() {
    let config = Config {
        delay: Duration::MAX,
    };
    let mut sender = Sender::new(config);
    assert_eq!(sender.delay, 2000);
    let mut receiver = Receiver::new(10 * (49 + PLACE));
    let mut out = Out::default();
    for n in 0..100 {
        receiver.up(us(n), send(&mut sender, n, n), &mut out);
        assert!(receiver.held().0 <= 10 && receiver.held().1 <= 10 * (49 + PLACE));
    }
    assert_eq!(
        out.up.iter().map(number).collect::<Vec<_>>(),
        (0..90).collect::<Vec<_>>()
    );
    assert_eq!(counter(&receiver, "forced"), 90);
    let mut none = Receiver::new(0);
    none.up(us(5), send(&mut sender, 7, 7), &mut out);
    assert_eq!(
        (out.up.len(), none.held(), none.deadline()),
        (91, (0, 0), None)
    );
}

#[test]
fn what_is_not_stamped_passes_and_what_is_cut_short_is_dropped() {
    let (mut receiver, mut out) = (Receiver::default(), Out::default());
    for bytes in [vec![], vec![0x45; 30], vec![0x10, 1, 2], vec![0x13; 9]] {
        receiver.up(us(0), Packet::new(bytes.clone(), us(0)), &mut out);
        assert_eq!(out.up.pop().unwrap().bytes, bytes);
    }
    for len in 1..=HEADER {
        receiver.up(us(0), Packet::new(vec![JITTER; len], us(0)), &mut out);
    }
    assert!(out.up.is_empty());
    assert_eq!(counter(&receiver, "malformed"), HEADER as u64);
    let mut sender = Sender::new(Config {
        delay: Duration::ZERO,
    });
    let mut marked = send(&mut sender, 1, 0);
    marked.outer = crate::ecn::Ecn::Ce;
    receiver.up(us(0), marked, &mut out);
    receiver.on_time(us(2000), &mut out);
    assert_eq!(out.up[0].outer, crate::ecn::Ecn::Ce);
}

#[test]
fn any_stamps_at_any_times_are_given_out_once_within_their_delay() {
    for seed in 1..=200 {
        let mut draws = SplitMix64::new(seed);
        let mut receiver = Receiver::new(draws.below(6000) as usize);
        let (mut now, mut sent, mut given) = (draws.next_u64() % (1 << 50), 0, 0);
        let mut out = Out::default();
        let mut latest = 0;
        for _ in 0..500 {
            let most = [10, 100_000, 30_000_000, 1 << 40][draws.below(4) as usize];
            now += draws.below(most);
            let stamp = match draws.below(4) {
                0 => draws.next_u64() as u32,
                _ => (now - draws.below(80_000).min(now)) as u32,
            };
            let delay = draws.next_u64() as u16;
            let head = [&[JITTER], &stamp.to_be_bytes()[..], &delay.to_be_bytes()].concat();
            if draws.below(20) == 0 {
                receiver.up(us(now), Packet::new(head, us(now)), &mut out);
            } else {
                let bytes = [head, packet(sent)].concat();
                receiver.up(us(now), Packet::new(bytes, us(now)), &mut out);
                sent += 1;
                latest = now + 2_000_000;
            }
            if draws.below(2) == 0 {
                receiver.on_time(us(now), &mut out);
                let due = receiver.deadline();
                assert!(due.is_none_or(|due| due > us(now)), "seed {seed}");
            }
            given += out.up.drain(..).count() as u64;
        }
        if let Some(due) = receiver.deadline() {
            assert!(due <= us(latest), "seed {seed}");
        }
        receiver.on_time(us(latest), &mut out);
        given += out.up.len() as u64;
        assert_eq!((given, receiver.held()), (sent, (0, 0)), "seed {seed}");
    }
}
