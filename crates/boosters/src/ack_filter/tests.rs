use super::*;
use crate::tcp::tests::{damaged, segment, with_options, with_sack};

fn through(filter: &mut AckFilter, queue: &mut Queue, bytes: Vec<u8>) -> bool {
    through_at(filter, queue, 0, bytes)
}

/// Returns true if the packet passed. Without room it counts as passed.
fn through_at(filter: &mut AckFilter, queue: &mut Queue, ms: u64, bytes: Vec<u8>) -> bool {
    let now = Duration::from_millis(ms);
    let packet = Packet::new(bytes, now);
    match filter.arriving(now, packet, queue, &mut Out::default()) {
        Some(packet) => {
            if let Some(number) = queue.push(packet.clone()) {
                filter.queued(number, &packet);
            }
            true
        }
        None => false,
    }
}

fn begun() -> (AckFilter, Queue) {
    (AckFilter::new(Config::default()), Queue::new(1 << 20, None))
}

fn ack(number: u32) -> Vec<u8> {
    segment(1, number, flags::ACK, &[])
}

#[test]
fn an_acknowledgement_for_which_there_is_no_room_leaves_data_alone() {
    let mut filter = AckFilter::new(Config::default());
    let data = segment(1, 100, flags::ACK, b"data");
    let mut queue = Queue::new(110, None);
    let other = vec![0x45; 40];
    queue
        .push(Packet::new(other, Duration::ZERO))
        .expect("room");
    assert!(through(&mut filter, &mut queue, ack(100)));
    queue.pop(Duration::ZERO).expect("the other packet");
    // It was dropped. A damaged one with the same addresses is not parsed; then data.
    let damaged = damaged(&data);
    assert!(through(&mut filter, &mut queue, damaged.clone()));
    assert!(through(&mut filter, &mut queue, ack(200)));
    let (_, first) = queue.pop(Duration::ZERO).expect("data");
    assert_eq!(first.bytes, damaged);
    let mut queue = Queue::new(1 << 20, None);
    assert!(through(&mut filter, &mut queue, data.clone()));
    assert!(through(&mut filter, &mut queue, ack(300)));
    assert!(!through(&mut filter, &mut queue, ack(400)));
    let (_, first) = queue.pop(Duration::ZERO).expect("data");
    assert_eq!(first.bytes, data);
}

#[test]
fn an_acknowledgement_with_a_mark_of_congestion_is_neither_dropped_nor_replaced() {
    let marked = |number, ecn: Ecn| {
        let mut bytes = ack(number);
        bytes[1] |= ecn as u8;
        crate::checksum::replace_u16(&mut bytes, 10, 0x4500, 0x4500 | ecn as u16);
        bytes
    };
    let (mut filter, mut queue) = begun();
    for number in [200, 300, 400] {
        assert!(through(&mut filter, &mut queue, marked(number, Ecn::Ce)));
    }
    assert!(through(&mut filter, &mut queue, ack(500)));
    // Same sender and mark: as before. Another mark carries other information.
    assert!(!through(&mut filter, &mut queue, ack(600)));
    assert!(through(&mut filter, &mut queue, marked(700, Ecn::Ect0)));
    assert!(!through(&mut filter, &mut queue, marked(800, Ecn::Ect0)));
    assert!(
        through(&mut filter, &mut queue, marked(100, Ecn::Ce)),
        "old"
    );
}

#[test]
fn an_acknowledgement_of_unsent_data_counts_for_a_round_trip_at_most() {
    let (mut filter, mut queue) = begun();
    // Undamaged, but of another connection, or forged.
    assert!(through_at(&mut filter, &mut queue, 0, ack(1 << 30)));
    assert!(
        !through_at(&mut filter, &mut queue, 5000, ack(100)),
        "still queued"
    );
    queue.pop(Duration::from_secs(5)).expect("it");
    assert!(through_at(&mut filter, &mut queue, 5001, ack(100)));
    assert!(
        !through_at(&mut filter, &mut queue, 5002, ack(200)),
        "replaced in its place"
    );
    // Damaged packets change no state.
    assert!(through_at(
        &mut filter,
        &mut queue,
        5003,
        damaged(&ack(1 << 30))
    ));
    assert!(
        !through_at(&mut filter, &mut queue, 5004, ack(300)),
        "likewise"
    );
    assert_eq!(filter.old, 1);
    // Nor do packets from before an unseen pause.
    assert!(through_at(
        &mut filter,
        &mut queue,
        5005,
        segment(1, 1 << 29, flags::ACK, b"x")
    ));
    filter.reset();
    assert!(through_at(&mut filter, &mut queue, 5006, ack(400)));
}

#[test]
fn answers_to_keepalives_and_to_probes_of_windows_pass() {
    let (mut filter, mut queue) = begun();
    for minute in 0..100 {
        assert!(through_at(
            &mut filter,
            &mut queue,
            minute * 60_000,
            ack(100)
        ));
    }
    let mut closed = ack(100);
    crate::tcp::set_window(&mut closed, 0);
    for ms in 0..100 {
        let ms = 6_000_000 + ms;
        assert!(through_at(&mut filter, &mut queue, ms, closed.clone()));
    }
    // Without a pause, one or more per round trip pass.
    let passed = (0..1000u64).filter(|step| {
        let ms = 7_000_000 + step * 70;
        through_at(
            &mut filter,
            &mut queue,
            ms,
            segment(5, 700, flags::ACK, &[]),
        )
    });
    assert!(passed.count() >= 500);
}

#[test]
fn other_options_are_not_lost() {
    let (mut filter, mut queue) = begun();
    let mptcp = |number| with_options(&ack(number), &[30, 4, 0, 0]);
    assert!(through(&mut filter, &mut queue, mptcp(100)));
    assert!(through(&mut filter, &mut queue, ack(200)));
    assert!(through(&mut filter, &mut queue, mptcp(300)));
    assert!(through(
        &mut filter,
        &mut queue,
        with_sack(&ack(150), &[(400, 500)])
    ));
    assert!(!through(
        &mut filter,
        &mut queue,
        with_sack(&ack(150), &[(400, 500)])
    ));
    assert!(through(
        &mut filter,
        &mut queue,
        with_sack(&ack(150), &[(400, 600)])
    ));
    assert!(!through(&mut filter, &mut queue, ack(150)), "old");
}

#[test]
fn newer_ones_replace_those_that_wait_and_old_ones_are_dropped() {
    let (mut filter, mut queue) = (AckFilter::new(Config::default()), Queue::new(1 << 20, None));
    assert!(through(
        &mut filter,
        &mut queue,
        segment(1, 100, flags::ACK, &[])
    ));
    assert!(!through(
        &mut filter,
        &mut queue,
        segment(1, 200, flags::ACK, &[])
    ));
    assert!(!through(
        &mut filter,
        &mut queue,
        segment(1, 150, flags::ACK, &[])
    ));
    let (_, packet) = queue.pop(Duration::ZERO).unwrap();
    assert_eq!(packet.bytes, segment(1, 200, flags::ACK, &[]));
    // The first has left the queue: the next one is independent.
    assert!(through(
        &mut filter,
        &mut queue,
        segment(1, 300, flags::ACK, &[])
    ));
    // Bytes in between are never overtaken.
    assert!(through(
        &mut filter,
        &mut queue,
        segment(1, 300, flags::ACK, b"x")
    ));
    assert!(through(
        &mut filter,
        &mut queue,
        segment(2, 400, flags::ACK, &[])
    ));
    // Port reuse.
    assert!(through(
        &mut filter,
        &mut queue,
        segment(9, 0, flags::SYN, &[])
    ));
    assert!(through(
        &mut filter,
        &mut queue,
        segment(10, 7, flags::ACK, &[])
    ));
}

#[test]
fn duplicates_are_thinned_but_enough_go_on_for_fast_retransmit() {
    let (mut filter, mut queue) = (AckFilter::new(Config::default()), Queue::new(1 << 20, None));
    let passed =
        (0..101).filter(|_| through(&mut filter, &mut queue, segment(1, 100, flags::ACK, &[])));
    // The first, eight duplicates, and every sixth of the other 92.
    assert_eq!(passed.count(), 1 + 8 + 15);
}

#[test]
fn duplicates_all_pass_while_nothing_waits() {
    let (mut filter, mut queue) = begun();
    for ms in 0..100 {
        assert!(through_at(&mut filter, &mut queue, ms, ack(1000)), "{ms}");
        queue.pop(Duration::from_millis(ms)).expect("it");
    }
}
