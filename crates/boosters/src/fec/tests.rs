use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use fec::theory::Channel;

use super::*;

const SPACING: Duration = Duration::from_millis(2);

struct Ran {
    lost: f64,
    /// Repair packets per packet.
    overhead: f64,
    /// Bytes of repair packets per byte of packets with headers of equal length.
    overhead_bytes: f64,
    late: Duration,
    dropped: u64,
}

/// Length of packets by their numbers.
type Length = fn(u32) -> usize;

fn any_length(number: u32) -> usize {
    60 + number as usize % 1100
}

/// Sends packets every `spacing`, one message after the other, over a link that loses some of them;
/// the peer counts the losses.
fn run(config: Config, channel: Option<Channel>, count: u32, spacing: Duration) -> Ran {
    run_lengths(config, channel, count, spacing, any_length)
}

fn run_lengths(
    config: Config,
    channel: Option<Channel>,
    count: u32,
    spacing: Duration,
    length: Length,
) -> Ran {
    let (mut sender, mut receiver) = (Sender::new(config), Receiver::new(1500));
    let mut draws = channel.map(|channel| channel.draws(7));
    let (mut counts, mut was_lost) = ([0u64; 3], false);
    let (mut arrived, mut sent) = (BTreeSet::new(), [0u64; 4]);
    let mut late = Duration::ZERO;
    let warm = count / 4;
    for number in 0..count {
        let now = spacing * number;
        let mut out = Out::default();
        if sender.deadline().is_some_and(|at| at <= now) {
            sender.on_time(now, &mut out);
        }
        let path = Path {
            counts,
            ..Path::default()
        };
        sender.set_path(now, &path);
        let mut bytes = vec![0x45; length(number)];
        bytes[1..5].copy_from_slice(&number.to_be_bytes());
        let packet = Packet::new(bytes, now);
        sender.down(now, packet.clone(), &mut out);
        let whole = packet.bytes.len() + OVERHEAD <= path.room;
        for message in std::mem::take(&mut out.down) {
            let is_data = message.bytes.ends_with(&packet.bytes);
            if number >= warm {
                let is_repair = matches!(message.bytes[..2], [FEC, 0x11 | 0x21]);
                let kind = if is_repair { 2 } else { 0 };
                sent[kind] += 1;
                // Headers of data are counted as if they were as long as those of repair packets.
                let header = if is_repair { 0 } else { REPAIR_EXTRA };
                let prefix = message.bytes.len() - packet.bytes.len().min(message.bytes.len());
                let len = if is_data {
                    message.bytes.len() - prefix
                } else {
                    message.bytes.len()
                };
                sent[kind + 1] += (len + header) as u64;
            }
            // Unprotected packets are cut by the chain.
            assert!(message.bytes.len() <= path.room || message.bytes[0] == 0x45);
            let lost = draws
                .as_mut()
                .is_some_and(|draws| draws.next() == Some(true));
            counts[0] += 1;
            counts[1] += u64::from(lost);
            counts[2] += u64::from(lost && !was_lost);
            was_lost = lost;
            if !lost {
                let before = out.up.len();
                receiver.up(now, message, &mut out);
                if is_data && whole {
                    assert_eq!(out.up[before].bytes, packet.bytes, "not passed on at once");
                }
            }
        }
        for packet in out.up.drain(..) {
            assert_eq!(packet.bytes[0], 0x45);
            let number = u32::from_be_bytes(packet.bytes[1..5].try_into().unwrap());
            assert_eq!(packet.bytes.len(), length(number));
            assert!(arrived.insert(number), "{number} came twice");
            late = late.max(now - spacing * number);
        }
    }
    let end = count - 200;
    let missing = (warm..end)
        .filter(|number| !arrived.contains(number))
        .count();
    Ran {
        lost: missing as f64 / f64::from(end - warm),
        overhead: sent[2] as f64 / sent[0] as f64,
        overhead_bytes: sent[3] as f64 / sent[1] as f64,
        late,
        dropped: sender.counters.repairs_dropped,
    }
}

const BLOCKS: Scheme = Scheme::Block { k: 20, depth: 1 };
const WINDOW: Scheme = Scheme::Window { window: 64 };

#[test]
fn a_clean_link_costs_nothing() {
    for scheme in [WINDOW, BLOCKS] {
        let config = Config {
            scheme,
            ..Config::default()
        };
        let ran = run(config, None, 5000, SPACING);
        assert_eq!((ran.lost, ran.overhead), (0.0, 0.0));
    }
}

#[test]
fn losses_are_restored_down_to_the_target_with_the_overhead_that_theory_gives() {
    for loss in [0.01, 0.02, 0.05, 0.1] {
        for scheme in [WINDOW, BLOCKS] {
            let config = Config {
                scheme,
                overhead_max: 1.0,
                ..Config::default()
            };
            let channel = Channel::iid(loss).unwrap();
            let ran = run(config, Some(channel), 120_000, SPACING);
            println!(
                "{loss} {scheme:?}: residual {:.1e}, overhead {:.3}, late {:?}",
                ran.lost, ran.overhead, ran.late
            );
            // A failed block lacks some packets; with a target of 1e-3 it would be a hundred times
            // as many.
            assert!(ran.lost <= 2e-5, "{}", ran.lost);
            let k = match scheme {
                Scheme::Window { window } => block_of_window(window.into()),
                Scheme::Block { k, .. } => k.into(),
            };
            let needed = fec::theory::rows_needed(&channel, 1, config.target, k)[k - 1];
            let rows = ran.overhead * k as f64;
            // A whole number, which allows for an error of half a row in the loss estimate.
            assert!(
                rows > needed - 0.3 && rows < needed + 1.6,
                "{rows} {needed}"
            );
        }
    }
}

#[test]
fn bursts_are_fought_as_far_as_the_share_allows() {
    let channel = || Channel::gilbert(0.0551, 6.7).unwrap();
    let interleaved = Scheme::Block { k: 20, depth: 8 };
    for (scheme, most) in [(WINDOW, 0.004), (BLOCKS, 0.04), (interleaved, 0.003)] {
        let config = Config {
            scheme,
            ..Config::default()
        };
        let ran = run(config, Some(channel()), 120_000, SPACING);
        println!(
            "{scheme:?}: residual {:.1e}, overhead {:.3}",
            ran.lost, ran.overhead
        );
        assert!(ran.lost < most && ran.overhead <= 0.501);
    }
}

#[test]
fn a_share_is_kept_also_where_packets_are_few() {
    for overhead_max in [0.1, 0.3] {
        let config = Config {
            overhead_max,
            ..Config::default()
        };
        let channel = Channel::iid(0.05).unwrap();
        let ran = run(config, Some(channel), 20_000, Duration::from_millis(250));
        assert!(ran.overhead <= overhead_max + 0.002, "{}", ran.overhead);
    }
}

#[test]
fn the_last_packets_are_protected_when_they_pause() {
    let mut sender = Sender::new(Config::default());
    let mut out = Out::default();
    sender.set_path(Duration::ZERO, &Path::default());
    let path = Path {
        counts: [10_000, 500, 490],
        ..Path::default()
    };
    sender.set_path(Duration::ZERO, &path);
    assert!(sender.share() > 0.1);
    let mut now = Duration::ZERO;
    for _ in 0..5 {
        now += Duration::from_millis(5);
        sender.down(now, Packet::new(vec![0x45; 100], now), &mut out);
    }
    let before = out.down.len();
    let at = sender.deadline().expect("a pause");
    assert!(at > now && at <= now + PAUSE_MAX);
    sender.on_time(at, &mut out);
    assert!(out.down.len() > before);
    // No host sends repair packets: they are marked where others would be dropped.
    let marks = |packets: &[Packet]| packets.iter().all(|packet| packet.ecn == Ecn::Ect0);
    assert!(marks(&out.down[before..]) && out.down[0].ecn == Ecn::Ect1);
    assert_eq!(sender.deadline(), None);
}

#[test]
fn a_restarted_sender_is_understood_and_rubbish_is_refused() {
    let mut receiver = Receiver::new(1500);
    let mut out = Out::default();
    let now = Duration::ZERO;
    for seed in 0..3 {
        let mut sender = Sender::new(Config {
            seed,
            ..Config::default()
        });
        sender.set_path(
            now,
            &Path {
                counts: [10_000, 500, 490],
                ..Path::default()
            },
        );
        for number in 0..200u8 {
            sender.down(now, Packet::new(vec![0x45, number, 3, 4], now), &mut out);
        }
        for message in out.down.drain(..).collect::<Vec<_>>() {
            receiver.up(now, message, &mut out);
        }
        assert_eq!(out.up.drain(..).count(), 200);
    }
    let mut state = 1u64;
    for _ in 0..20_000 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let len = (state >> 40) as usize % 40;
        let mut bytes: Vec<u8> = (0..len).map(|i| (state >> (i % 57)) as u8).collect();
        bytes.insert(0, FEC);
        receiver.up(
            now,
            Packet {
                bytes,
                ..Packet::default()
            },
            &mut out,
        );
    }
}

#[test]
fn overhead_does_not_grow_with_congestion_losses() {
    let mut sender = Sender::new(Config::default());
    let mut path = Path::default();
    let mut hear = |lost: u64, congested: bool| {
        for _ in 0..20 {
            path.counts[0] += 200;
            path.counts[1] += lost;
            path.counts[2] += lost;
            path.congested += if congested { lost } else { 0 };
            sender.set_path(Duration::ZERO, &path);
            // Updated again before there is news.
            sender.set_path(Duration::ZERO, &path);
        }
        sender.share()
    };
    assert_eq!(hear(20, true), 0.0, "full queue");
    assert_eq!(hear(0, false), 0.0);
    let share = hear(4, false);
    assert!(share > 0.05, "{share}");
    assert!(hear(40, true) <= share);
    assert!(hear(4, false) <= share, "unchanged");
}

/// Returns the counts of a peer that loses one in twenty.
fn lossy() -> [u64; 3] {
    [10_000, 500, 490]
}

#[test]
fn a_far_end_without_state_gets_repair_packets_over_new_packets_only() {
    for scheme in [WINDOW, BLOCKS] {
        let mut sender = Sender::new(Config {
            scheme,
            ..Config::default()
        });
        let (mut receiver, mut out) = (Receiver::new(1500), Out::default());
        let now = Duration::ZERO;
        for counts in [[0; 3], lossy()] {
            let path = Path {
                counts,
                ..Path::default()
            };
            sender.set_path(now, &path);
        }
        for number in 0..210u8 {
            if number == 110 {
                assert!(sender.deadline().is_some());
                sender.reset();
                assert_eq!(sender.deadline(), None, "timer of the old state");
                out.down.clear();
            }
            let packet = Packet::new(vec![0x45, number, 3, 4], now);
            sender.down(now, packet, &mut out);
            if number < 110 {
                continue;
            }
            let lost = number % 25 == 15;
            for message in out.down.drain(usize::from(lost)..).collect::<Vec<_>>() {
                receiver.up(now, message, &mut out);
            }
            out.down.clear();
        }
        let came: BTreeSet<u8> = out.up.iter().map(|packet| packet.bytes[1]).collect();
        assert_eq!(came, (110..210).collect(), "every new packet");
        assert_eq!(out.up.len(), 100, "once");
    }
}

/// Carries packets of many lengths over a link that loses some, with a code at each end. Returns
/// all messages.
fn carried_by(near: Backend, far: Backend) -> Vec<Vec<u8>> {
    let mut sender = Sender::new(Config {
        scheme: BLOCKS,
        code: near,
        overhead_max: 1.0,
        ..Config::default()
    });
    let mut receiver = Receiver::new(1500).with_code(far);
    let (mut out, now) = (Out::default(), Duration::ZERO);
    for counts in [[0; 3], lossy()] {
        let path = Path {
            counts,
            ..Path::default()
        };
        sender.set_path(now, &path);
    }
    let packet = |number: u32| -> Vec<u8> {
        let head = [0x45, (number >> 8) as u8, number as u8];
        let body = (0..number * 37 % 1100).map(|at| (at * number) as u8);
        head.into_iter().chain(body).collect()
    };
    let mut messages = Vec::new();
    for number in 0..300 {
        sender.down(now, Packet::new(packet(number), now), &mut out);
        for (index, message) in std::mem::take(&mut out.down).into_iter().enumerate() {
            messages.push(message.bytes.clone());
            if index > 0 || number % 9 != 4 {
                receiver.up(now, message, &mut out);
            }
        }
    }
    let came: BTreeSet<_> = out.up.drain(..).map(|packet| packet.bytes).collect();
    assert_eq!(came, (0..300).map(packet).collect(), "{near}, {far}");
    assert!(receiver.restored > 20, "{near}, {far}");
    // Only their contents tell the codes apart.
    for (end, code) in [
        (format!("{:?}", sender.encoder), near),
        (format!("{:?}", receiver.block), far),
    ] {
        let is_other = end.contains("Reference");
        assert_eq!(is_other, code == Backend::Reference, "{near}, {far}");
    }
    messages
}

#[test]
fn ends_with_unlike_block_codes_send_the_same_bytes_and_restore_each_others_packets() {
    let codes = [Backend::default(), Backend::Reference];
    let pairs = codes.iter().flat_map(|near| codes.map(|far| (*near, far)));
    let all: Vec<_> = pairs.map(|(near, far)| carried_by(near, far)).collect();
    assert!(all.iter().all(|messages| *messages == all[0]));
}

#[test]
fn messages_that_grow_arrive_and_are_restored() {
    let mut receiver = Receiver::new(1500);
    let mut sender = Sender::new(Config::default());
    let (mut out, now) = (Out::default(), Duration::ZERO);
    for room in [1400, 8945, 1400, 9100] {
        let path = |counts| Path {
            room,
            counts,
            ..Path::default()
        };
        receiver.set_path(now, &path([0; 3]));
        sender.set_path(now, &path([0; 3]));
        sender.set_path(now, &path(lossy()));
        let mut missing = BTreeSet::new();
        for number in 0..500u32 {
            let mut bytes = vec![0x45; (room - OVERHEAD).min(9000)];
            bytes[1..5].copy_from_slice(&number.to_be_bytes());
            let packet = Packet::new(bytes, now);
            sender.down(now, packet.clone(), &mut out);
            let lost = number > 50 && number % 40 == 0;
            for (index, message) in std::mem::take(&mut out.down).into_iter().enumerate() {
                assert!(message.bytes.len() <= room);
                if index > 0 || !lost {
                    receiver.up(now, message, &mut out);
                }
                if index == 0 && !lost {
                    let is_same = out.up[0].bytes == packet.bytes;
                    assert!(is_same, "received packets must be passed on at once");
                }
            }
            missing.extend(lost.then_some(number));
            for packet in out.up.drain(..) {
                missing.remove(&u32::from_be_bytes(packet.bytes[1..5].try_into().unwrap()));
            }
        }
        assert!(missing.range(..450).next().is_none(), "{room}: {missing:?}");
    }
    assert_eq!((receiver.payload_max, receiver.refused), (9000, 0));
}

#[test]
fn packets_of_one_length_get_all_of_their_share_and_those_of_many_no_more() {
    let config = |overhead_max| Config {
        overhead_max,
        ..Config::default()
    };
    let channel = |loss| Some(Channel::iid(loss).unwrap());
    for (overhead_max, length) in [(0.1, 40), (0.3, 60), (0.5, 1200)] {
        let length: Length = match length {
            40 => |_| 40,
            60 => |_| 60,
            _ => |_| 1200,
        };
        // More is lost than can be restored.
        let config = config(overhead_max);
        let ran = run_lengths(config, channel(0.4), 20_000, SPACING, length);
        assert_eq!(ran.dropped, 0);
        assert!(
            (overhead_max - ran.overhead).abs() < 0.01,
            "{}",
            ran.overhead
        );
    }
    // Short and long ones: a repair packet is as long as a long one, whichever it covers.
    let mixed: Length = |number| if number % 8 == 3 { 1200 } else { 64 };
    for overhead_max in [0.1, 0.3, 0.5] {
        for scheme in [WINDOW, BLOCKS] {
            let config = Config {
                scheme,
                ..config(overhead_max)
            };
            let ran = run_lengths(config, channel(0.4), 40_000, SPACING, mixed);
            assert!(
                ran.overhead_bytes <= overhead_max + 0.002,
                "{}",
                ran.overhead_bytes
            );
            assert!(
                ran.overhead_bytes > overhead_max * 0.9,
                "{}",
                ran.overhead_bytes
            );
            assert!(ran.dropped > 0);
        }
    }
    // With sufficient overhead the target is met.
    let mixed: Length = |number| if number % 2 == 0 { 1200 } else { 64 };
    let ran = run_lengths(config(1.0), channel(0.05), 60_000, SPACING, mixed);
    assert!(
        ran.lost < 1e-4 && ran.dropped == 0,
        "{} {}",
        ran.lost,
        ran.dropped
    );
}

#[test]
fn packets_that_do_not_fit_beside_a_header_are_protected_in_pieces() {
    for scheme in [WINDOW, BLOCKS] {
        let config = Config {
            scheme,
            ..Config::default()
        };
        let channel = Some(Channel::iid(0.05).unwrap());
        for length in [
            (|_| 1300) as Length,
            |number| 1280 + number as usize % 40,
            |_| 4000,
        ] {
            let ran = run_lengths(config, channel, 20_000, SPACING, length);
            assert!(ran.lost <= 5e-4, "{}", ran.lost);
        }
    }
}

/// Returns the share of packets lost over a link with room for `room` messages per packet. Packets
/// wait for it up to a second.
fn lost_over_a_full_link(config: Config, loss: f64, room: f64) -> f64 {
    let (mut sender, mut receiver) = (Sender::new(config), Receiver::new(1500));
    let mut draws = Channel::iid(loss).unwrap().draws(3);
    let (mut queue, mut ready) = (VecDeque::new(), VecDeque::new());
    let (mut counts, mut was_lost) = ([0u64; 3], false);
    let mut arrived = BTreeSet::new();
    let slot = Duration::from_micros(1000);
    let (mut number, slots) = (0u32, 60_000u32);
    for at in 0..slots {
        let now = slot * at;
        while f64::from(number) * room <= f64::from(at) {
            let mut bytes = vec![0x45; 1000];
            bytes[1..5].copy_from_slice(&number.to_be_bytes());
            queue.push_back(Packet::new(bytes, now));
            number += 1;
        }
        let path = Path {
            counts,
            rtt: Duration::from_millis(100),
            ..Path::default()
        };
        sender.set_path(now, &path);
        let mut out = Out::default();
        while ready.is_empty() {
            let Some(packet) = queue.pop_front() else {
                break;
            };
            if now - packet.since <= Duration::from_secs(1) {
                sender.down(now, packet, &mut out);
                ready.extend(out.down.drain(..));
            }
        }
        let Some(message) = ready.pop_front() else {
            continue;
        };
        let lost = draws.next() == Some(true);
        counts[0] += 1;
        counts[1] += u64::from(lost);
        counts[2] += u64::from(lost && !was_lost);
        was_lost = lost;
        if !lost {
            receiver.up(now, message, &mut out);
            let numbers = out.up.drain(..).map(|packet| packet.bytes);
            let numbers = numbers.map(|b| u32::from_be_bytes(b[1..5].try_into().unwrap()));
            arrived.extend(numbers);
        }
    }
    // Excludes packets still in flight, and the time until the loss is known.
    let (begin, end) = (number / 4, number - 2000);
    let missing = (begin..end).filter(|number| !arrived.contains(number));
    missing.count() as f64 / f64::from(end - begin)
}

#[test]
fn repair_packets_take_no_room_that_packets_need() {
    for loss in [0.01, 0.05, 0.1, 0.2] {
        for room in [0.9, 1.0, 1.05, 1.1, 1.2, 1.5] {
            let with = lost_over_a_full_link(Config::default(), loss, room);
            let bare = Config {
                overhead_max: 0.0,
                ..Config::default()
            };
            let without = lost_over_a_full_link(bare, loss, room);
            let what = format!("{loss}, room for {room}: {with:.4} lost, {without:.4} without");
            assert!(with <= without + 0.003, "{what}");
            // Twice the loss suffices.
            assert!(room < 1.0 + 2.0 * loss + 0.02 || with < 0.001, "{what}");
        }
    }
}
