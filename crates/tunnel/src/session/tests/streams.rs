use std::time::Duration;

use super::{Pair, config};
use crate::{
    class::Class,
    session::{Event, SessionConfig},
    wire::{Frame, Frames, ResetCode},
};

const SECOND: Duration = Duration::from_secs(1);

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// Returns true if a packet has a segment.
fn has_segment(packet: &[u8]) -> bool {
    let segment = |frame| matches!(frame, Ok(Frame::Segment { .. } | Frame::Coded { .. }));
    Frames::new(packet).any(segment)
}

#[test]
fn the_first_bytes_come_with_the_opening_after_half_a_round_trip() {
    for class in Class::ALL {
        let mut pair = Pair::new();
        let [near, _] = &mut pair.sides;
        let stream = near.session.open(class, 0, b"to whom").expect("few");
        near.write(stream, b"hello");
        pair.run(super::DELAY + Duration::from_millis(10));
        let far = &pair.sides[1];
        let stream_header = b"to whom".to_vec();
        assert!(far.has(&Event::Opened {
            stream,
            class,
            stream_header
        }));
        assert_eq!(far.bytes.placed[&stream], b"hello", "{class:?}");
        assert_eq!(far.readable(stream), 5);
    }
}

#[test]
fn both_directions_end_on_their_own_and_then_the_stream_is_no_more() {
    let mut pair = Pair::new();
    let stream = pair.sides[0]
        .session
        .open(Class::Bulk, 0, b"")
        .expect("few");
    pair.sides[0].write(stream, &bytes(50_000));
    pair.sides[0].session.finish(stream);
    pair.run(SECOND);
    assert!(pair.sides[1].has(&Event::Finished { stream }));
    assert_eq!(pair.sides[1].bytes.placed[&stream], bytes(50_000));
    assert!(!pair.sides[1].has(&Event::Closed { stream }));
    pair.sides[1].write(stream, b"an answer after the end");
    pair.sides[1].session.finish(stream);
    pair.run(SECOND);
    for side in &pair.sides {
        assert!(side.has(&Event::Closed { stream }));
    }
    assert_eq!(
        pair.sides[0].bytes.placed[&stream],
        b"an answer after the end"
    );
}

#[test]
fn no_more_is_sent_than_is_allowed_and_more_when_it_is() {
    let mut pair = Pair::new();
    let stream = pair.sides[0]
        .session
        .open(Class::Normal, 0, b"")
        .expect("few");
    pair.sides[0].write(stream, &bytes(300_000));
    pair.run(SECOND);
    assert_eq!(pair.sides[1].readable(stream), 100_000);
    pair.sides[1].session.allow(stream, 250_000);
    pair.run(SECOND);
    assert_eq!(pair.sides[1].readable(stream), 250_000);
    pair.sides[1].session.allow(stream, 400_000);
    pair.run(SECOND);
    assert_eq!(pair.sides[1].bytes.placed[&stream], bytes(300_000));
    assert!(pair.sides[0].has(&Event::Acked {
        stream,
        until: 300_000
    }));
}

/// Bytes that were on their way when the hold began still arrive.
#[test]
fn nothing_more_is_sent_of_a_held_stream_until_more_is_allowed() {
    for loses in [false, true] {
        let mut pair = Pair::new();
        let stream = pair.sides[0]
            .session
            .open(Class::Normal, 0, b"")
            .expect("few");
        let other = pair.sides[0]
            .session
            .open(Class::Normal, 0, b"")
            .expect("few");
        pair.sides[0].write(stream, &bytes(20_000));
        pair.run(SECOND);
        assert!(pair.sides[1].session.hold(stream));
        assert!(!pair.sides[1].session.hold(stream), "once");
        pair.loses = Box::new(move |_, side, _| loses && side == 1);
        pair.run(super::DELAY / 2);
        pair.loses = Box::new(|_, _, _| false);
        pair.run(SECOND);
        pair.sides[0].write(stream, &bytes(50_000)[20_000..]);
        pair.sides[0].write(other, &bytes(50_000));
        pair.run(SECOND);
        assert_eq!(pair.sides[1].readable(stream), 20_000, "{loses}");
        assert_eq!(pair.sides[1].readable(other), 50_000);
        // Less than a quarter of the window, which is announced even so.
        pair.sides[1].session.allow(stream, 100_001);
        assert!(!pair.sides[1].session.is_held(stream));
        pair.run(SECOND);
        assert_eq!(pair.sides[1].bytes.placed[&stream], bytes(50_000));
    }
}

#[test]
fn a_hold_that_its_end_has_overtaken_has_no_effect() {
    let mut send = crate::stream::SendState::new(100);
    send.written(1000);
    send.on_credit(200);
    send.on_hold(100);
    assert!(send.unsent(0, 1000).is_some());
    send.on_hold(200);
    assert_eq!(send.unsent(0, 1000), None);
    send.on_credit(200);
    assert_eq!(send.unsent(0, 1000), None, "the credit at which it is held");
    send.on_credit(201);
    assert!(send.unsent(0, 1000).is_some());
}

#[test]
fn a_reset_ends_both_directions_at_both_ends() {
    let mut pair = Pair::new();
    let stream = pair.sides[0]
        .session
        .open(Class::Bulk, 0, b"")
        .expect("few");
    pair.sides[0].write(stream, &bytes(90_000));
    pair.run(super::DELAY * 3 / 2);
    pair.sides[1].session.reset(stream, ResetCode::Refused);
    pair.run(SECOND);
    let code = ResetCode::Refused;
    assert!(pair.sides[0].has(&Event::Reset { stream, code }));
    // And nothing is left that keeps them busy.
    pair.run(60 * SECOND);
    let sent = pair.sides[0].session.stats().segments_retransmitted;
    assert_eq!(sent, 0);
}

#[test]
fn what_comes_before_the_opening_waits_for_it() {
    let mut pair = Pair::new();
    let mut segments = 0;
    pair.loses = Box::new(move |_, side, packet| {
        segments += u32::from(side == 0 && has_segment(packet));
        side == 0 && has_segment(packet) && segments == 1
    });
    let stream = pair.sides[0]
        .session
        .open(Class::Bulk, 0, b"lost")
        .expect("few");
    pair.sides[0].write(stream, &bytes(20_000));
    pair.run(super::DELAY * 2);
    assert!(pair.sides[1].events.is_empty());
    pair.run(SECOND);
    assert_eq!(pair.sides[1].bytes.placed[&stream], bytes(20_000));
    // Only the lost one; parts that came before it were held.
    assert_eq!(pair.sides[0].session.stats().segments_retransmitted, 1);
}

#[test]
fn the_number_of_streams_is_limited() {
    let mut pair = Pair::new();
    for _ in 0..10 {
        pair.sides[0]
            .session
            .open(Class::Bulk, 0, b"")
            .expect("ten");
    }
    assert!(pair.sides[0].session.open(Class::Bulk, 0, b"").is_err());
}

#[test]
fn a_path_that_becomes_too_small_loses_nothing() {
    let with = |initiator| SessionConfig {
        packet_max: 1400,
        ..config(initiator)
    };
    let mut pair = Pair::with(with);
    let stream = pair.sides[0]
        .session
        .open(Class::Bulk, 0, b"")
        .expect("few");
    pair.run(super::DELAY * 2);
    pair.sides[1].session.allow(stream, 10_000_000);
    pair.sides[0].write(stream, &bytes(2_000_000));
    pair.run(SECOND);
    pair.loses = Box::new(|_, _, packet| packet.len() > 1250);
    pair.run(60 * SECOND);
    assert_eq!(pair.sides[1].readable(stream), 2_000_000);
    assert_eq!(pair.sides[1].bytes.placed[&stream], bytes(2_000_000));
}

/// Queued streams are completed one after the other; then the others share.
#[test]
fn streams_that_are_queued_are_delivered_one_after_the_other() {
    let mut pair = Pair::new();
    let near = &mut pair.sides[0];
    let streams = [40_000, 60_000, 80_000, 20_000].map(|len| {
        let class = Class::DelayTolerant;
        let stream = near.session.open(class, 0, b"").expect("few");
        near.write(stream, &bytes(len));
        near.session.finish(stream);
        stream
    });
    for (place, (stream, len)) in [(2, (0, 40_000)), (1, (1, 60_000)), (0, (2, 80_000))] {
        near.session.queue(streams[stream], place, len);
    }
    pair.run(4 * SECOND);
    let finished = pair.sides[1].events.iter().filter_map(|event| match event {
        Event::Finished { stream } => Some(*stream),
        _ => None,
    });
    let order = [2, 1, 0, 3].map(|stream| streams[stream]);
    assert_eq!(finished.collect::<Vec<_>>(), order);
}

/// Returns how long the packets of each end may wait, once streams have been written to every 20 ms
/// for a second, in pieces of these lengths. The link carries 25,000 bytes in 20 ms, and the round
/// trip is 100 ms.
fn waits_beside(streams: &[(Class, usize)]) -> [Duration; 2] {
    let mut pair = Pair::with(|initiator| SessionConfig {
        stream_credit: 1 << 40,
        ..config(initiator)
    });
    let open = |(class, len): &(Class, usize)| {
        let stream = pair.sides[0].session.open(*class, 0, b"").expect("few");
        (stream, *len)
    };
    let streams: Vec<_> = streams.iter().map(open).collect();
    for _ in 0..50 {
        for (stream, len) in &streams {
            pair.sides[0].write(*stream, &bytes(*len));
        }
        pair.run(Duration::from_millis(20));
    }
    pair.sides
        .each_ref()
        .map(|side| side.session.may_wait(pair.now))
}

#[test]
fn packets_wait_for_others_but_not_beside_streams_that_do_not_fill_the_link() {
    let check = |streams: &[(Class, usize)], wait: u64| {
        let waits = waits_beside(streams);
        let wait = Duration::from_micros(wait);
        let is_near = |of: Duration| of.abs_diff(wait) < Duration::from_micros(500);
        assert!(waits.into_iter().all(is_near), "{streams:?}: {waits:?}");
    };
    let fills = 40_000;
    // Two streams that fill the link have 12,500 each.
    check(&[(Class::Normal, 15_000)], 2000);
    check(&[(Class::Bulk, fills), (Class::Normal, 15_000)], 6250);
    for len in [200, 1250, 1400, 2000, 9000] {
        check(&[(Class::Normal, len)], 2000);
        check(&[(Class::Bulk, fills), (Class::Normal, len)], 2000);
        check(&[(Class::Normal, fills), (Class::Normal, len)], 2000);
        check(&[(Class::Bulk, len)], 6250);
        check(&[(Class::Interactive, len)], 0);
    }
    check(&[(Class::Normal, fills)], 6250);
    check(&[(Class::Normal, fills), (Class::Normal, fills)], 6250);
}

#[test]
fn packets_wait_again_once_a_steady_stream_fills_the_link() {
    let mut pair = Pair::new();
    let stream = pair.sides[0]
        .session
        .open(Class::Normal, 0, b"")
        .expect("few");
    for _ in 0..10 {
        pair.sides[0].write(stream, &bytes(500));
        pair.run(super::DELAY / 2);
    }
    let may_wait = |pair: &Pair| {
        let sides = pair.sides.each_ref();
        sides.map(|side| side.session.may_wait(pair.now) > Duration::from_millis(2))
    };
    pair.run(super::DELAY * 10);
    assert_eq!(may_wait(&pair), [false; 2]);
    pair.sides[1].session.allow(stream, 10_000_000);
    pair.sides[0].write(stream, &bytes(1_000_000));
    pair.run(super::DELAY * 6);
    assert_eq!(may_wait(&pair), [true; 2]);
    // The transfer ends, and is followed by nothing.
    pair.run(SECOND * 2);
    assert_eq!(may_wait(&pair), [true; 2]);
}
