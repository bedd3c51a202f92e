use std::time::Duration;

use super::*;

/// Time of all losses.
const NOW: Duration = Duration::from_secs(3600);
const RTT: Duration = Duration::from_millis(600);

fn at_first() -> Duration {
    Duration::ZERO
}

/// Answers each probe that the path lets through; returns the number of probes.
fn search(
    mtu: &mut Mtu,
    now: &mut Duration,
    path: usize,
    mut lost: impl FnMut(u32) -> bool,
) -> u32 {
    let mut sent = 0;
    for _ in 0..200 {
        if let Some(probe) = mtu.next_probe(*now, 2 * RTT) {
            sent += 1;
            if probe.size <= path && !lost(sent) {
                mtu.on_ack(probe.id);
            }
        }
        *now += RTT;
    }
    sent
}

#[test]
fn any_path_is_found_within_the_step() {
    for path in 1200..=1500 {
        let mut mtu = Mtu::new(1200, 1472);
        search(&mut mtu, &mut at_first(), path, |_| false);
        let want = path.min(1472);
        assert!(
            mtu.size() <= want && want - mtu.size() <= STEP_MIN,
            "{path}: {}",
            mtu.size()
        );
    }
}

#[test]
fn the_longest_is_tried_first() {
    let mut mtu = Mtu::new(1200, 1472);
    assert_eq!(search(&mut mtu, &mut at_first(), 1500, |_| false), 1);
    assert_eq!(mtu.size(), 1472);
}

#[test]
fn no_packet_is_longer_than_suits_the_rate() {
    let (mut mtu, mut now) = (Mtu::new(1200, 1472), at_first());
    mtu.suit(700);
    assert_eq!(search(&mut mtu, &mut now, 1500, |_| false), 0);
    assert_eq!((mtu.size(), mtu.expected()), (700, 700));
    // A faster link starts a search for longer packets at once, a slower one reduces them.
    mtu.suit(1300);
    assert_eq!(search(&mut mtu, &mut now, 1500, |_| false), 1);
    assert_eq!(mtu.size(), 1300);
    mtu.suit(9000);
    assert_eq!(search(&mut mtu, &mut now, 1500, |_| false), 1);
    assert_eq!(mtu.size(), 1472);
    mtu.suit(700);
    assert_eq!(mtu.size(), 700);
}

#[test]
fn the_expected_size_waits_for_the_end_of_the_search() {
    let (mut mtu, mut now) = (Mtu::new(1200, 1472), Duration::ZERO);
    let mut expected = Vec::new();
    for path in [1300, 1250, 1500] {
        let begin = now;
        while now < begin + Duration::from_secs(100) {
            expected.push(mtu.expected());
            let probe = mtu.next_probe(now, 2 * RTT);
            if let Some(probe) = probe.filter(|probe| probe.size <= path) {
                mtu.on_ack(probe.id);
            }
            now += RTT;
        }
        assert_eq!(mtu.expected(), mtu.size());
        assert!((path.min(1472) - mtu.size()) <= STEP_MIN);
        if path == 1300 {
            mtu.reset();
            assert!(mtu.size() < mtu.expected());
        } else {
            now += RAISE;
        }
    }
    expected.dedup();
    // The maximum, then the result of each search.
    assert_eq!(expected.len(), 4, "{expected:?}");
    assert_eq!((expected[0], expected[3]), (1472, 1472));
}

#[test]
fn two_lost_probes_of_three_do_not_mislead() {
    let mut mtu = Mtu::new(1200, 1472);
    search(&mut mtu, &mut at_first(), 1400, |n| n % 3 != 0);
    assert!((1384..=1400).contains(&mtu.size()), "{}", mtu.size());
}

#[test]
fn a_late_answer_counts() {
    let mut mtu = Mtu::new(1200, 1472);
    let probe = mtu.next_probe(Duration::ZERO, RTT).unwrap();
    let again = mtu.next_probe(RTT, RTT).unwrap();
    assert_ne!(probe.id, again.id);
    mtu.on_ack(probe.id);
    assert_eq!(mtu.size(), 1472);
    assert_eq!(mtu.next_probe(2 * RTT, RTT), None);
}

#[test]
fn after_ten_minutes_a_longer_path_is_found() {
    let (mut mtu, mut now) = (Mtu::new(1200, 1472), Duration::ZERO);
    search(&mut mtu, &mut now, 1300, |_| false);
    assert!(mtu.size() <= 1300);
    let raise = mtu.deadline().unwrap();
    assert!(raise > now && raise <= RAISE + now);
    search(&mut mtu, &mut raise.clone(), 1500, |_| false);
    assert_eq!(mtu.size(), 1472);
}

#[test]
fn a_black_hole_is_left_and_an_outage_is_none() {
    let (mut mtu, mut now) = (Mtu::new(1200, 1472), Duration::ZERO);
    search(&mut mtu, &mut now, 1500, |_| false);
    // An outage: nothing short arrives either.
    assert!((0..1000).all(|_| !mtu.on_lost(1472, NOW)));
    mtu.on_arrived(1400);
    // Loss of every second packet is no black hole.
    for _ in 0..1000 {
        assert!(!mtu.on_lost(1472, NOW));
        mtu.on_arrived(100);
        mtu.on_arrived(1472);
    }
    let mut fell = false;
    for _ in 0..BLACK_HOLE_LONG {
        mtu.on_arrived(100);
        fell |= mtu.on_lost(1472, NOW);
    }
    assert!(fell);
    assert_eq!(mtu.size(), FLOOR);
    search(&mut mtu, &mut now, 1350, |_| false);
    assert!((1334..=1350).contains(&mtu.size()), "{}", mtu.size());
}

#[test]
fn many_outages_that_long_packets_do_not_survive_are_a_black_hole() {
    let (mut mtu, mut now) = (Mtu::new(1200, 1472), Duration::ZERO);
    search(&mut mtu, &mut now, 1500, |_| false);
    let outage = |mtu: &mut Mtu| {
        mtu.on_lost(1472, NOW);
        mtu.on_arrived(100);
        mtu.on_outage(NOW);
    };
    (1..BLACK_HOLE_OUTAGES).for_each(|_| outage(&mut mtu));
    // One long packet gets through: it was no black hole.
    mtu.on_arrived(1472);
    (1..BLACK_HOLE_OUTAGES).for_each(|_| outage(&mut mtu));
    assert_eq!(mtu.size(), 1472);
    outage(&mut mtu);
    assert_eq!(mtu.size(), FLOOR);
}

#[test]
fn unknown_answers_are_ignored() {
    let mut mtu = Mtu::new(1200, 1472);
    mtu.on_ack(7);
    assert_eq!(mtu.size(), 1200);
}

#[test]
fn what_was_sent_before_an_outage_was_over_was_not_too_long() {
    let (mut mtu, mut now) = (Mtu::new(1200, 1472), Duration::ZERO);
    search(&mut mtu, &mut now, 1500, |_| false);
    mtu.on_outage(NOW);
    for _ in 0..1000 {
        let sent_at = NOW - Duration::from_millis(1);
        assert!(!mtu.on_lost(1472, sent_at));
        mtu.on_arrived(100);
    }
    // Packets retransmitted and lost again indicate one.
    let mut fell = false;
    for _ in 0..=BLACK_HOLE_LONG.max(BLACK_HOLE_SHORT) {
        fell |= mtu.on_lost(1472, NOW);
        mtu.on_arrived(100);
    }
    assert!(fell);
}

#[test]
fn many_outages_are_a_black_hole_even_if_each_loss_is_found_after_one() {
    let (mut mtu, mut now) = (Mtu::new(1200, 1472), Duration::ZERO);
    search(&mut mtu, &mut now, 1500, |_| false);
    for _ in 0..=BLACK_HOLE_OUTAGES {
        let sent_at = now;
        now += RTT;
        mtu.on_outage(now);
        mtu.on_lost(1472, sent_at);
        mtu.on_arrived(100);
    }
    assert_eq!(mtu.size(), FLOOR);
}
