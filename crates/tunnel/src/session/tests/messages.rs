//! Datagrams (RFC 9221).

use super::{
    super::{QUEUES_MAX, TooManyQueues},
    *,
};
use crate::{class::Class, outage::State};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
const RATE: u64 = 10_000_000;

/// Creates a queue of side 0 that always has a datagram of that length.
fn endless(pair: &mut Pair, class: Class, site: u32, len: usize) -> PacketQueue {
    let side = &mut pair.sides[0];
    let queue = side.session.open_packets(class, site).expect("few");
    side.bytes.endless.insert(queue, len);
    side.session.set_packets_ready(queue, true);
    queue
}

fn queue(pair: &mut Pair, class: Class) -> PacketQueue {
    let session = &mut pair.sides[0].session;
    session.open_packets(class, 0).expect("few")
}

/// Creates a stream of side 0 that always has data.
fn upload(pair: &mut Pair, class: Class, site: u32) -> StreamId {
    let side = &mut pair.sides[0];
    let stream = side.session.open(class, site, b"").expect("few");
    pair.run(2 * DELAY);
    pair.sides[1].session.allow(stream, 1 << 30);
    pair.run(2 * DELAY);
    pair.sides[0].write(stream, &vec![7; 40_000_000]);
    stream
}

/// Returns the bytes on the link of this many datagrams of that length.
fn on_link(messages: usize, len: usize) -> f64 {
    (messages * (len + 2 + 53)) as f64
}

#[test]
fn packets_cross_once_with_their_channels_and_marks() {
    let mut pair = Pair::new();
    let [a, b] = [Class::Normal, Class::Interactive].map(|class| queue(&mut pair, class));
    assert_ne!(a, b);
    let marks = [Ecn::NotEct, Ecn::Ect0, Ecn::Ect1, Ecn::Ce];
    let message = |i: usize| vec![i as u8; 1 + i * 300];
    for (i, ecn) in marks.into_iter().enumerate() {
        pair.sides[0].send(a, i as u8, ecn, &message(i));
    }
    pair.sides[0].send(b, 0x7f, Ecn::Ect0, b"urgent");
    pair.run(SECOND);
    let mut expected = vec![(0x7f, Ecn::Ect0, b"urgent".to_vec())];
    expected.extend((0..4).map(|i| (i as u8, marks[i], message(i))));
    assert_eq!(pair.sides[1].bytes.came, expected);
    let stats = pair.sides.each_ref().map(|side| side.session.stats());
    assert_eq!((stats[0].messages_sent, stats[1].messages_received), (5, 5));
    // Once for each: the queues reported that they were empty.
    assert_eq!(pair.sides[0].bytes.asked, 5);
    assert_eq!(stats[0].segments_retransmitted, 0);
    assert_eq!(stats[1].messages_ignored, 0);
}

#[test]
fn what_is_urgent_goes_before_streams_and_what_is_not_after() {
    let mut pair = Pair::new();
    upload(&mut pair, Class::Bulk, 0);
    pair.run(SECOND);
    let [urgent, patient] =
        [Class::Interactive, Class::DelayTolerant].map(|class| queue(&mut pair, class));
    for i in 0..50 {
        pair.sides[0].send(patient, 1, Ecn::Ect0, b"some day");
        pair.sides[0].send(urgent, 2, Ecn::Ect0, b"now");
        // A packet takes 1.2 ms, and one may be in flight.
        pair.run(DELAY + 3 * MS);
        let came = &pair.sides[1].bytes.came;
        assert_eq!(came.len(), i + 1);
        assert!(came.iter().all(|(channel, ..)| *channel == 2));
    }
}

#[test]
fn packets_and_streams_of_a_class_share_what_there_is() {
    for (len, weight) in [(1398, 1), (200, 1), (60, 1), (1398, 3), (200, 3)] {
        let mut pair = Pair::new();
        let site = u32::from(weight > 1);
        pair.sides[0].session.set_weight(site, weight);
        let stream = upload(&mut pair, Class::Bulk, 0);
        endless(&mut pair, Class::Normal, site, len);
        pair.run(SECOND);
        let (readable, came) = (
            pair.sides[1].readable(stream),
            pair.sides[1].bytes.came.len(),
        );
        pair.run(10 * SECOND);
        let bytes = (pair.sides[1].readable(stream) - readable) as f64 * 1453.0 / 1395.0;
        let messages = on_link(pair.sides[1].bytes.came.len() - came, len);
        let wanted = f64::from(weight) / f64::from(weight + 1);
        let share = messages / (messages + bytes);
        assert!((share - wanted).abs() < 0.03, "{len}, {weight}: {share}");
        let used = (messages + bytes) * 8.0 / (10.0 * RATE as f64);
        assert!((0.95..1.01).contains(&used), "{len}, {weight}: {used}");
    }
}

#[test]
fn packets_are_paced_and_ask_for_reports() {
    for len in [60, 200, 1398] {
        let mut pair = Pair::new();
        endless(&mut pair, Class::Normal, 0, len);
        pair.run(5 * SECOND);
        let [near, far] = pair.sides.each_ref().map(|side| side.session.stats());
        let bytes = on_link(near.messages_sent as usize, len);
        let share = bytes * 8.0 / (5.0 * RATE as f64);
        assert!((0.97..1.001).contains(&share), "{len}: {share}");
        // A quarter of a round trip lies between two.
        let reports = far.reports_sent / 5;
        assert!((35..50).contains(&reports), "{len}: {reports} a second");
        let rtt = pair.sides[0].session.path().rtt;
        assert!(rtt.abs_diff(2 * DELAY) < 5 * MS, "{rtt:?}");
    }
}

#[test]
fn what_is_lost_is_counted_and_not_sent_again() {
    let mut pair = Pair::new();
    let queue = endless(&mut pair, Class::Normal, 0, 500);
    pair.loses = Box::new(|n, side, _| side == 0 && n % 20 == 7);
    pair.run(5 * SECOND);
    pair.sides[0].session.set_packets_ready(queue, false);
    pair.run(SECOND);
    let [near, far] = pair.sides.each_ref().map(|side| side.session.stats());
    let lost = 1.0 - far.messages_received as f64 / near.messages_sent as f64;
    let measures = pair.sides[0].session.measures();
    let [looked, missing, _] = measures.sent.map(|count| count as f64);
    assert!(lost > 0.03 && (missing / looked - lost).abs() < 0.005);
    assert!((pair.sides[0].session.path().loss - lost).abs() < 0.02);
    assert!(pair.sides[0].session.causes().link > 100);
    assert_eq!(near.segments_retransmitted + near.segments_repeated, 0);
}

#[test]
fn nothing_is_asked_for_while_the_link_is_down() {
    let mut pair = Pair::new();
    endless(&mut pair, Class::Normal, 0, 1000);
    pair.run(SECOND);
    pair.loses = Box::new(|_, _, _| true);
    pair.run(5 * SECOND);
    let state = pair.sides[0].session.path().link;
    assert!(matches!(state, State::Stopped { .. }));
    let asked = pair.sides[0].bytes.asked;
    pair.run(60 * SECOND);
    assert_eq!(pair.sides[0].bytes.asked, asked);
    pair.loses = Box::new(|_, _, _| false);
    pair.run(5 * SECOND);
    let after = pair.sides[0].bytes.asked;
    assert!(after > asked + 4000, "{after}");
    let now = pair.now;
    pair.sides[0].session.hint(now, super::super::LinkHint::Off);
    pair.run(SECOND);
    assert_eq!(pair.sides[0].bytes.asked, after);
}

#[test]
fn the_window_holds_streams_back_and_no_packets() {
    let mut pair = Pair::new();
    upload(&mut pair, Class::Bulk, 0);
    // One segment is lost, each time.
    pair.loses = Box::new(|_, side, packet| side == 0 && packet.starts_with(&[2, 0, 0, 0, 20]));
    pair.run(10 * SECOND);
    let before = pair.sides[1].bytes.came.len();
    let queue = queue(&mut pair, Class::DelayTolerant);
    for i in 0..20 {
        assert!(!pair.sides[0].session.window_is_open());
        pair.sides[0].send(queue, i, Ecn::Ect0, b"beside");
        pair.run(DELAY + 3 * MS);
        assert_eq!(pair.sides[1].bytes.came.len(), before + usize::from(i) + 1);
    }
}

#[test]
fn a_peer_that_has_not_said_so_is_sent_none_and_ignores_them() {
    // The peer accepts no datagrams, whatever the sender believes.
    for believed in [false, true] {
        let mut pair = Pair::with(|initiator| SessionConfig {
            packets: initiator,
            peer_packets: believed,
            ..config(initiator)
        });
        assert_eq!(pair.sides[0].session.takes_packets(), believed);
        let queue = queue(&mut pair, Class::Interactive);
        for i in 0..10 {
            pair.sides[0].send(queue, i, Ecn::Ect0, b"hello");
        }
        pair.run(SECOND);
        let sent = if believed { 10 } else { 0 };
        let stats = pair.sides[1].session.stats();
        assert_eq!(pair.sides[0].bytes.asked, sent);
        assert_eq!((stats.messages_received, stats.messages_ignored), (0, sent));
        assert_eq!(pair.sides[1].bytes.came, []);
    }
}

#[test]
fn queues_are_bounded_and_end() {
    let mut pair = Pair::new();
    let all: Vec<_> = (0..QUEUES_MAX)
        .map(|_| queue(&mut pair, Class::Bulk))
        .collect();
    let session = &mut pair.sides[0].session;
    assert_eq!(session.open_packets(Class::Bulk, 0), Err(TooManyQueues));
    session.close_packets(all[3]);
    session.close_packets(all[3]);
    session.set_packets_ready(all[3], true);
    let new = session.open_packets(Class::Bulk, 0).expect("one has ended");
    assert!(!all.contains(&new));
    assert_eq!(session.open_packets(Class::Bulk, 0), Err(TooManyQueues));
    pair.run(SECOND);
    assert_eq!(pair.sides[0].bytes.asked, 0);
}

#[test]
fn what_does_not_fit_is_not_sent_and_its_queue_idle() {
    let mut pair = Pair::new();
    let [odd, good] = [Class::Interactive, Class::Bulk].map(|class| queue(&mut pair, class));
    let room = pair.sides[0].session.packet_room();
    assert_eq!(room, 1398);
    for message in [vec![], vec![7; room + 1]] {
        pair.sides[0].send(odd, 1, Ecn::Ect0, &message);
        pair.sides[0].send(odd, 1, Ecn::Ect0, b"behind");
        pair.sides[0].send(good, 2, Ecn::Ect0, &vec![7; room]);
        let asked = pair.sides[0].bytes.asked;
        pair.run(SECOND);
        assert_eq!(pair.sides[0].bytes.asked, asked + 2);
        // The queue was reported idle, so its next datagram waits for `set_packets_ready`.
        pair.sides[0].bytes.queues.clear();
    }
    let came = &pair.sides[1].bytes.came;
    assert_eq!(came.len(), 2);
    assert!(came.iter().all(|(channel, ..)| *channel == 2));
}

#[test]
fn where_long_packets_do_not_come_through_there_is_less_room() {
    let mut pair = Pair::new();
    endless(&mut pair, Class::Normal, 0, 1398);
    let short = endless(&mut pair, Class::Normal, 0, 100);
    pair.run(SECOND);
    pair.loses = Box::new(|_, _, packet| packet.len() > 1250);
    pair.run(5 * SECOND);
    let room = pair.sides[0].session.packet_room();
    assert!((1173..1250).contains(&room), "{room}");
    // Nor do they if there is nothing else.
    let mut pair = Pair::new();
    endless(&mut pair, Class::Normal, 0, 1398);
    pair.sides[0].session.set_packets_ready(short, false);
    pair.run(SECOND);
    pair.loses = Box::new(|_, _, packet| packet.len() > 1250);
    pair.run(20 * SECOND);
    let room = pair.sides[0].session.packet_room();
    assert!((1173..1250).contains(&room), "{room}");
}

#[test]
fn what_was_marked_before_says_nothing_of_the_link() {
    for (ecn, network, marked) in [
        (Ecn::Ect0, false, 0),
        (Ecn::Ect0, true, 30),
        (Ecn::Ce, false, 0),
        (Ecn::Ce, true, 0),
        (Ecn::NotEct, true, 0),
    ] {
        let mut pair = Pair::new();
        let queue = queue(&mut pair, Class::Normal);
        // Nothing else that is marked comes meanwhile.
        pair.run(SECOND);
        let now = pair.now;
        let before = pair.sides[1].session.arrivals.report(now).marked;
        pair.marks = network;
        for _ in 0..30 {
            pair.sides[0].send(queue, 1, ecn, &[7; 1000]);
        }
        pair.run(DELAY + 40 * MS);
        let came = &pair.sides[1].bytes.came;
        let outer = if network && ecn != Ecn::NotEct {
            Ecn::Ce
        } else {
            ecn
        };
        assert!(came.len() == 30 && came.iter().all(|(_, mark, _)| *mark == outer));
        let now = pair.now;
        let after = pair.sides[1].session.arrivals.report(now).marked;
        let beside = after - before - marked;
        assert!(beside <= 12, "{ecn:?}, {network}: {beside} reports");
    }
}

#[test]
fn long_packets_that_are_lost_at_times_are_no_black_hole_whichever_ends_a_burst() {
    let mut pair = Pair::new();
    let queue = queue(&mut pair, Class::Interactive);
    let room = pair.sides[0].session.packet_room();
    // One of ten packets of a frame is lost, and none of the short ones that end frames.
    pair.loses = Box::new(|n, _, packet| packet.len() > 1000 && n % 10 == 3);
    for _ in 0..2000 {
        for len in [1300, 1300, 1300, 200] {
            pair.sides[0].send(queue, 1, Ecn::Ect0, &vec![7; len]);
        }
        pair.run(40 * MS);
        assert_eq!(pair.sides[0].session.packet_room(), room);
    }
    assert!(pair.sides[0].session.measures().sent[1] > 500);
    // A path that lets no long packets through is one.
    pair.loses = Box::new(|_, _, packet| packet.len() > 1250);
    for _ in 0..100 {
        for len in [1300, 1300, 1300, 200] {
            pair.sides[0].send(queue, 1, Ecn::Ect0, &vec![7; len]);
        }
        pair.run(40 * MS);
    }
    assert!(pair.sides[0].session.packet_room() < 1250);
}

#[test]
fn few_packets_that_are_lost_are_no_outage() {
    let mut pair = Pair::new();
    let near = queue(&mut pair, Class::Interactive);
    let far = pair.sides[1].session.open_packets(Class::Interactive, 0);
    let far = far.expect("few");
    pair.loses = Box::new(|n, _, packet| packet.first() == Some(&11) && n % 3 != 0);
    for i in 0..200 {
        pair.sides[0].send(near, 1, Ecn::Ect0, b"ping");
        if i % 3 == 0 {
            pair.sides[1].send(far, 1, Ecn::Ect0, b"pong");
        }
        pair.run(700 * MS);
    }
    for side in &pair.sides {
        assert_eq!(side.session.stats().outages, 0);
    }
}

#[test]
fn while_there_is_talk_an_outage_is_seen_soon() {
    let mut pair = Pair::new();
    let queues = [0, 1].map(|side| {
        let session = &mut pair.sides[side].session;
        session.open_packets(Class::Interactive, 0).expect("few")
    });
    for _ in 0..100 {
        for (side, queue) in pair.sides.iter_mut().zip(queues) {
            side.send(queue, 1, Ecn::Ect0, &[7; 160]);
        }
        pair.run(20 * MS);
    }
    pair.loses = Box::new(|_, _, _| true);
    pair.run(DELAY + 300 * MS);
    for side in &pair.sides {
        assert!(side.has(&Event::LinkDown));
    }
}
