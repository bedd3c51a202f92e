use super::*;
use crate::tcp::{
    seal, set_window,
    tests::{answer, damaged, segment, with_options, with_sack},
};

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Sends a packet to the link.
fn down(snoop: &mut Snoop, ms: u64, bytes: Vec<u8>) {
    snoop.leaving(at(ms), &Packet::new(bytes, at(ms)));
}

fn up(snoop: &mut Snoop, ms: u64, bytes: Vec<u8>) -> Out {
    let mut out = Out::default();
    snoop.up(at(ms), Packet::new(bytes, at(ms)), &mut out);
    out
}

fn data(seq: u32) -> Vec<u8> {
    segment(seq, 1, flags::ACK, &[seq as u8; 100])
}

fn ack(ack: u32) -> Vec<u8> {
    answer(1, ack, flags::ACK, &[])
}

fn begun() -> Snoop {
    let mut snoop = Snoop::new(Config::default());
    for number in 0..10 {
        down(
            &mut snoop,
            u64::from(number),
            data((u32::MAX - 300).wrapping_add(number * 100)),
        );
    }
    snoop
}

#[test]
fn a_lost_segment_is_retransmitted_and_duplicates_are_held_back() {
    let mut snoop = begun();
    let lost = (u32::MAX - 300).wrapping_add(200);
    assert_eq!(up(&mut snoop, 50, ack(lost)).up.len(), 1);
    let out = up(&mut snoop, 51, ack(lost));
    assert_eq!((out.up.len(), out.down.len()), (0, 1));
    assert_eq!(out.down[0].bytes, data(lost));
    for _ in 0..5 {
        let out = up(&mut snoop, 52, ack(lost));
        assert_eq!((out.up.len(), out.down.len()), (0, 0));
    }
    let all = (u32::MAX - 300).wrapping_add(1000);
    assert_eq!(up(&mut snoop, 100, ack(all)).up.len(), 1);
    assert_eq!((snoop.bytes, snoop.deadline()), (0, None));
    assert_eq!((snoop.again, snoop.held_back), (1, 6));
}

#[test]
fn holes_that_selective_acknowledgements_show_are_filled() {
    let mut snoop = begun();
    let begin = u32::MAX - 300;
    let n = |number: u32| begin.wrapping_add(number * 100);
    up(&mut snoop, 50, ack(n(1)));
    let sacked = with_sack(&ack(n(1)), &[(n(2), n(3)), (n(5), n(6))]);
    let out = up(&mut snoop, 51, sacked);
    let again: Vec<_> = out.down.iter().map(|packet| packet.bytes.clone()).collect();
    assert_eq!(again, [data(n(1)), data(n(3)), data(n(4))]);
}

/// Sends segments, acknowledges the first, and sends a duplicate with these ranges. Returns the
/// number of packets to the link and to the host.
fn dup(ranges: &[(u32, u32)]) -> (usize, usize) {
    let mut snoop = begun();
    let begin = u32::MAX - 300;
    let first = ack(begin.wrapping_add(300));
    assert_eq!(up(&mut snoop, 50, first.clone()).up.len(), 1);
    let n = |number: &u32| begin.wrapping_add(number * 100);
    let ranges: Vec<_> = ranges.iter().map(|(a, b)| (n(a), n(b))).collect();
    let out = up(&mut snoop, 51, with_sack(&first, &ranges));
    (out.down.len(), out.up.len())
}

#[test]
fn what_came_twice_asks_for_nothing() {
    assert_eq!(dup(&[(4, 5)]), (1, 0), "gap");
    assert_eq!(dup(&[(1, 2)]), (0, 1), "below");
    assert_eq!(
        dup(&[(2, 3)]),
        (0, 1),
        "range just below the acknowledgement"
    );
    assert_eq!(
        dup(&[(5, 6), (4, 8)]),
        (0, 1),
        "first range within the second"
    );
    assert_eq!(dup(&[(8, 9), (4, 5)]), (4, 0), "holes");
}

#[test]
fn a_closed_window_is_probed_by_its_sender() {
    let mut snoop = begun();
    let mut closed = ack(u32::MAX - 300);
    set_window(&mut closed, 0);
    for round in 0..10 {
        let out = up(&mut snoop, 50 + round, closed.clone());
        assert_eq!((out.down.len(), out.up.len()), (0, 1));
    }
}

#[test]
fn no_segment_is_retransmitted_before_it_could_have_arrived() {
    let mut snoop = Snoop::new(Config::default());
    let path = Path {
        rtt: at(600),
        ..Path::default()
    };
    snoop.set_path(at(0), &path);
    down(&mut snoop, 0, data(1000));
    assert_eq!(snoop.deadline(), Some(at(1200)));
    let mut snoop = Snoop::new(Config::default());
    let path = Path {
        rtt: at(2),
        ..Path::default()
    };
    snoop.set_path(at(0), &path);
    down(&mut snoop, 0, data(1000));
    assert_eq!(snoop.deadline(), Some(at(200)));
}

#[test]
fn outages_and_holes_do_not_count_for_round_trips_and_nothing_is_held_for_long() {
    let mut snoop = Snoop::new(Config {
        tries: 20,
        ..Config::default()
    });
    let key = Tcp::read(&data(1000)).expect("whole").ip.key();
    for number in 0..10 {
        down(&mut snoop, 0, data(1000 + number * 100));
    }
    // All of it after a minute, which gives no sample; then one that counts for a few round trips
    // of the link.
    up(&mut snoop, 60_000, ack(1050));
    up(&mut snoop, 60_000, ack(1950));
    let rtt = |snoop: &Snoop| snoop.flows.peek(&key).and_then(|flow| flow.rtt);
    assert_eq!(rtt(&snoop), None);
    up(&mut snoop, 60_001, ack(2000));
    assert_eq!(rtt(&snoop), Some(at(400)));
    down(&mut snoop, 60_100, data(2000));
    up(&mut snoop, 60_150, ack(2100));
    let before = rtt(&snoop).expect("measured");
    assert!(before < at(400));
    // Behind a retransmitted one.
    for number in 0..3 {
        down(&mut snoop, 61_000, data(2100 + number * 100));
    }
    up(&mut snoop, 61_000, ack(2100));
    let (mut held, mut last) = (0, 0);
    for ms in (61_010..70_000).step_by(10) {
        if up(&mut snoop, ms, ack(2100)).up.is_empty() {
            (held, last) = (held + 1, ms);
        }
    }
    assert!(held > 50 && last <= 61_010 + 4 * 400, "{held} {last}");
    assert_eq!(rtt(&snoop), Some(before));
    up(&mut snoop, 90_000, ack(2400));
    assert_eq!(rtt(&snoop), Some(before));
}

#[test]
fn what_is_damaged_or_says_more_is_let_alone() {
    let mut snoop = begun();
    let first = ack(u32::MAX - 300);
    up(&mut snoop, 50, first.clone());
    for packet in [damaged(&first), with_options(&first, &[30, 4, 0, 0])] {
        let out = up(&mut snoop, 51, packet);
        assert_eq!((out.down.len(), out.up.len()), (0, 1));
    }
    // For unsent data: the other state is not trusted either.
    let out = up(&mut snoop, 52, ack(1 << 20));
    assert_eq!((out.down.len(), out.up.len(), snoop.bytes), (0, 1, 0));
    let mut snoop = begun();
    snoop.reset();
    assert_eq!((snoop.deadline(), snoop.bytes), (None, 0));
}

#[test]
fn an_unacknowledged_segment_is_retransmitted_a_few_times_before_the_sender_sees_the_loss() {
    let mut snoop = begun();
    let mut sent = 0;
    while let Some(now) = snoop.deadline() {
        let mut out = Out::default();
        snoop.on_time(now, &mut out);
        sent += out.down.len();
        assert!(now < Duration::from_secs(120));
    }
    assert_eq!(sent, 5);
    let first = u32::MAX - 300;
    up(&mut snoop, 200_000, ack(first));
    let out = up(&mut snoop, 200_001, ack(first));
    assert_eq!((out.up.len(), out.down.len()), (1, 0));
}

/// Returns the SACK after the arrival of the first `acked` segments in order, and of these ranges.
fn sacked(acked: u32, ranges: &[(u32, u32)]) -> Vec<u8> {
    let n = |number: u32| (u32::MAX - 300).wrapping_add(number * 100);
    let ranges: Vec<_> = ranges.iter().map(|&(a, b)| (n(a), n(b))).collect();
    with_sack(&ack(n(acked)), &ranges)
}

#[test]
fn senders_see_the_drops_of_the_local_queue() {
    let mut snoop = begun();
    let n = |number: u32| (u32::MAX - 300).wrapping_add(number * 100);
    // 10 never left; 12 did, and is lost.
    for number in 11..15 {
        down(&mut snoop, 20, data(n(number)));
    }
    up(&mut snoop, 49, ack(n(9)));
    up(&mut snoop, 50, ack(n(10)));
    let out = up(&mut snoop, 51, sacked(10, &[(11, 12)]));
    assert_eq!((out.down.len(), out.up.len()), (0, 1));
    let first = sacked(10, &[(13, 14), (11, 12)]);
    let out = up(&mut snoop, 52, first.clone());
    assert_eq!(out.down[0].bytes, data(n(12)));
    assert_eq!(out.up[0].bytes, first, "unchanged");
    // Nor is there a timeout: segments behind the hole may have arrived.
    assert_eq!(snoop.deadline(), None);
    // It comes, and no longer counts as missing.
    down(&mut snoop, 60, data(n(10)));
    let out = up(&mut snoop, 61, sacked(10, &[(14, 15), (13, 14), (11, 12)]));
    assert_eq!((out.down.len(), out.up.len()), (0, 0));
}

#[test]
fn sack_ranges_are_remembered_and_missing_segments_hidden() {
    let mut snoop = begun();
    up(&mut snoop, 50, sacked(1, &[]));
    assert_eq!(up(&mut snoop, 51, sacked(1, &[(2, 3)])).down.len(), 1);
    assert_eq!(up(&mut snoop, 52, sacked(1, &[(4, 5)])).down.len(), 1);
    assert_eq!(up(&mut snoop, 53, sacked(1, &[(8, 9)])).down.len(), 3);
    // The first of them has arrived; the sender gets only that.
    let out = up(&mut snoop, 54, sacked(3, &[(8, 9), (4, 5)]));
    assert_eq!(out.down.len(), 0);
    let tcp = Tcp::read(&out.up[0].bytes).expect("whole");
    assert_eq!(tcp.ack, u32::MAX - 300 + 300);
    assert!(!tcp.has_sack() && tcp.is_plain_ack());
}

/// Acknowledgements repeat the ranges of earlier ones; only awaited segments are looked at.
#[test]
fn ranges_that_were_reported_before_cost_nothing() {
    const SEGMENTS: u32 = 6000;
    let mut snoop = Snoop::new(Config {
        cache: 4 << 20,
        ..Config::default()
    });
    for number in 0..SEGMENTS {
        down(&mut snoop, 0, data(1000 + number * 100));
    }
    let awaited = |snoop: &Snoop| {
        let flow = snoop.flows.oldest().and_then(|key| snoop.flows.peek(&key));
        flow.expect("one").awaited()
    };
    let first = ack(1000);
    up(&mut snoop, 50, first.clone());
    assert_eq!(awaited(&snoop), SEGMENTS as usize);
    let end = 1000 + SEGMENTS * 100;
    let all: [_; 4] = std::array::from_fn(|at| (1100 + at as u32 * 100, end));
    for _ in 0..2 {
        up(&mut snoop, 60, with_sack(&first, &all));
        assert_eq!(awaited(&snoop), 1);
    }
}

#[test]
fn a_lost_retransmission_is_repeated_once_overtaken() {
    let mut snoop = begun();
    let n = |number: u32| (u32::MAX - 300).wrapping_add(number * 100);
    up(&mut snoop, 50, sacked(1, &[]));
    let out = up(&mut snoop, 51, sacked(1, &[(2, 10)]));
    assert!(out.down.len() == 1 && out.down[0].urgent);
    down(&mut snoop, 52, data(n(10)));
    let overtaken = sacked(1, &[(2, 11)]);
    assert_eq!(up(&mut snoop, 60, overtaken.clone()).down.len(), 1);
    assert_eq!(up(&mut snoop, 61, overtaken).down.len(), 0);
}

#[test]
fn memory_is_bounded_and_hostile_numbers_do_no_harm() {
    let mut snoop = Snoop::new(Config {
        cache: 20_000,
        flows_max: 4,
        ..Config::default()
    });
    let (mut state, mut again, mut held) = (1u64, 0, 0);
    for step in 0..50_000u64 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        // Mostly near each other, and mostly acknowledgements.
        let near = |n: u64| match n % 101 {
            0 => n as u32,
            far => (step / 100 * 50 + far % 8 * 100) as u32,
        };
        let (a, b) = (near(state >> 32), near(state >> 11));
        let flags = (state >> 56) as u8;
        let f = if flags < 200 { flags::ACK } else { flags };
        let len = (state >> 40) as usize % 300;
        let mut mine = segment(a, b, f, &[0; 300][..len]);
        mine[20 + 1] = (state >> 3) as u8 % 8;
        seal(&mut mine);
        down(&mut snoop, step * 20, mine);
        let mut theirs = with_sack(&answer(b, a, f, &[]), &[(a, b), (b, a)]);
        theirs[20 + 3] = (state >> 3) as u8 % 8;
        seal(&mut theirs);
        theirs.truncate(theirs.len() - (state >> 60) as usize % 3);
        let out = up(&mut snoop, step * 20, theirs);
        assert!(out.down.len() <= AT_ONCE);
        again += out.down.len();
        held += usize::from(out.up.is_empty());
        if let Some(now) = snoop.deadline().filter(|due| *due <= at(step * 20)) {
            snoop.on_time(now, &mut Out::default());
        }
        assert!(snoop.bytes <= 20_000 && snoop.due.len() <= 4);
    }
    assert!(
        again > 0 && held > 50 && snoop.again > 100,
        "{again} {held} {snoop:?}"
    );
}

#[test]
fn an_unknown_round_trip_is_measured_however_long() {
    let mut snoop = Snoop::new(Config::default());
    let path = Path {
        rtt: Path::RTT_UNKNOWN,
        ..Path::default()
    };
    snoop.set_path(at(0), &path);
    down(&mut snoop, 0, data(1000));
    assert_eq!(snoop.deadline(), Some(at(2000)), "twice a second");
    up(&mut snoop, 0, ack(1000));
    up(&mut snoop, 600, ack(1100));
    down(&mut snoop, 600, data(1100));
    assert_eq!(snoop.deadline(), Some(at(1800)));
}
