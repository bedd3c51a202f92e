use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const RTT: Duration = Duration::from_millis(160);
const SILENCE: Duration = Duration::from_millis(200);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn timing() -> Timing {
    Timing {
        rtt: RTT,
        rate: Some(10_000_000),
    }
}

fn arrivals() -> Arrivals {
    Arrivals::new(timing(), Duration::ZERO)
}

fn packet(number: u64) -> Arrived {
    Arrived {
        number,
        datagram: 1000,
        marked: number == 3,
        asks: Asks::Soon,
    }
}

fn gap(before: u64, missing: u64, before_us: u64, after_us: u64) -> Gap {
    Gap {
        before,
        missing,
        before_us,
        after_us,
    }
}

#[test]
fn reports_keep_to_the_pace() {
    let mut arrivals = arrivals();
    assert_eq!(
        arrivals.deadline(),
        ms(40),
        "a beacon, a quarter of the round trip"
    );
    arrivals.on_packet(ms(5), &packet(0), SILENCE);
    assert_eq!(arrivals.deadline(), ms(20), "one packet waits for another");
    arrivals.on_packet(ms(7), &packet(1), SILENCE);
    assert_eq!(arrivals.deadline(), ms(10), "a sixteenth of the round trip");
    assert!(!arrivals.wants_report(ms(9)) && arrivals.wants_report(ms(10)));
    arrivals.report(ms(10));
    arrivals.on_sent(ms(10), Some(100));
    assert_eq!(arrivals.deadline(), ms(50), "nothing is new");
    arrivals.on_sent(ms(45), None);
    assert_eq!(
        arrivals.deadline(),
        ms(85),
        "whatever is sent is a sign of life"
    );
    arrivals.on_packet(
        ms(46),
        &Arrived {
            asks: Asks::Nothing,
            ..packet(2)
        },
        SILENCE,
    );
    arrivals.on_sent(ms(300), None);
    assert_eq!(
        arrivals.deadline(),
        ms(330),
        "reports are reported after two round trips"
    );
    arrivals.set_idle(true);
    arrivals.report(ms(330));
    arrivals.on_sent(ms(330), Some(100));
    assert_eq!(arrivals.deadline(), ms(1330), "neither end waits");
    arrivals.ask();
    assert_eq!(arrivals.deadline(), ms(331), "at once when asked");
}

/// Whatever the phase of the beacons at first, those of one end soon answer those of the other.
#[test]
fn beacons_of_an_idle_session_go_together() {
    for phase in (0..1000).step_by(50) {
        let [mut leader, mut follower] = [false, true].map(|follows| {
            let mut arrivals = arrivals().with_beacons_following(follows);
            arrivals.set_idle(true);
            arrivals.on_sent(ms(if follows { phase } else { 0 }), Some(100));
            arrivals
        });
        let mut alone = 0;
        for number in 0..20 {
            let beacon = leader.deadline();
            while follower.deadline() <= beacon {
                let own = follower.deadline();
                follower.report(own);
                follower.on_sent(own, Some(100));
                alone += 1;
                assert!(number < 3, "{phase}: still alone at {own:?}");
            }
            leader.report(beacon);
            leader.on_sent(beacon, Some(100));
            let asks = Asks::Nothing;
            let arrived = Arrived {
                asks,
                ..packet(number)
            };
            follower.on_packet(beacon, &arrived, SILENCE);
            if follower.wants_report(beacon) {
                follower.report(beacon);
                follower.on_sent(beacon, Some(100));
            }
        }
        assert!(alone <= 2, "{phase}: {alone} beacons alone");
    }
}

#[test]
fn beacons_of_a_session_at_rest_are_rarer_still() {
    let mut arrivals = arrivals();
    arrivals.set_idle(true);
    arrivals.set_rests(true);
    arrivals.on_sent(ms(1000), Some(100));
    assert_eq!(arrivals.deadline(), ms(6000));
    arrivals.ask();
    assert_eq!(arrivals.deadline(), ms(1), "at once when asked");
}

#[test]
fn packets_of_hosts_are_reported_with_patience() {
    let hosts = |number| Arrived {
        asks: Asks::Later,
        ..packet(number)
    };
    let mut arrivals = arrivals();
    arrivals.set_idle(true);
    for number in 0..30 {
        arrivals.on_packet(ms(number), &hosts(number), SILENCE);
    }
    assert_eq!(arrivals.deadline(), ms(40), "a quarter of the round trip");
    arrivals.report(ms(40));
    arrivals.on_sent(ms(40), Some(100));
    arrivals.on_packet(ms(41), &hosts(30), SILENCE);
    assert_eq!(arrivals.deadline(), ms(80), "one of them or many");
    arrivals.on_packet(ms(42), &packet(31), SILENCE);
    assert_eq!(
        arrivals.deadline(),
        ms(60),
        "as what goes with them wants it"
    );
    arrivals.report(ms(60));
    arrivals.on_sent(ms(60), Some(100));
    arrivals.on_packet(ms(500), &hosts(32), SILENCE);
    assert_eq!(arrivals.deadline(), ms(61), "at once after a silence");
    arrivals.report(ms(500));
    arrivals.on_packet(ms(501), &hosts(33), SILENCE);
    arrivals.ask();
    assert_eq!(arrivals.deadline(), ms(501), "and when asked");
    // 160 bytes at a fiftieth of the rate, up to 250 ms or two round trips.
    let patient = |rtt, rate| {
        let rate = Some(rate);
        Timing { rtt: ms(rtt), rate }.patient()
    };
    assert_eq!(patient(10, 1_000_000), ms(64));
    assert_eq!(patient(10, 1_000_000_000), Duration::from_micros(2500));
    assert_eq!(patient(600, 10_000_000), ms(150));
    assert_eq!(
        [patient(100, 20_000), patient(600, 20_000)],
        [ms(250), ms(1200)]
    );
    assert_eq!(patient(100, 2000), ms(1280), "never sooner than others");
}

#[test]
fn where_one_end_measures_there_are_several_reports_in_a_round_trip() {
    let timing = Timing {
        rtt: ms(40),
        rate: Some(144_000),
    };
    let pause = |stated| {
        let mut arrivals = Arrivals::new(timing, ms(0)).with_rates_stated(stated);
        let asks = Asks::Later;
        arrivals.on_packet(ms(0), &Arrived { asks, ..packet(0) }, SILENCE);
        arrivals.deadline()
    };
    assert_eq!(pause(true), ms(250));
    assert!(pause(false) < ms(18), "160 bytes at half the rate");
}

#[test]
fn the_first_packet_after_a_silence_and_many_gaps_are_reported_at_once() {
    let mut arrivals = arrivals();
    let report = |arrivals: &mut Arrivals, now| {
        arrivals.on_sent(now, Some(100));
        arrivals.report(now)
    };
    report(&mut arrivals, ms(100));
    arrivals.on_packet(ms(101), &packet(0), SILENCE);
    assert_eq!(arrivals.deadline(), ms(120));
    report(&mut arrivals, ms(120));
    report(&mut arrivals, ms(420));
    arrivals.on_packet(ms(420), &packet(1), SILENCE);
    assert_eq!(arrivals.deadline(), ms(421));
    report(&mut arrivals, ms(421));
    for number in 1..9 {
        assert!(!arrivals.gaps.pressing());
        arrivals.on_packet(ms(422), &packet(number * 10), SILENCE);
    }
    assert_eq!(arrivals.deadline(), ms(422));
}

#[test]
fn spacing_follows_round_trip_and_rate() {
    let of = |rtt, rate| {
        let rate = Some(rate);
        let timing = Timing { rtt: ms(rtt), rate };
        [timing.spacing(), timing.beacon(100), timing.min_spacing()]
    };
    let us = Duration::from_micros;
    // 160 bytes at half the rate; 100 bytes at a hundredth of it.
    assert_eq!(of(600, 10_000_000), [us(37_500), ms(50), ms(1)]);
    assert_eq!(of(20, 100_000_000), [us(2500), ms(5), ms(1)]);
    assert_eq!(of(60, 100_000_000), [ms(5), ms(15), ms(1)]);
    assert_eq!(of(0, 100_000_000), [ms(1), ms(1), ms(1)]);
    assert_eq!(of(528, 500_000), [ms(33), ms(160), us(5120)]);
    assert_eq!(of(600, 20_000), [ms(128), ms(4000), ms(128)]);
    assert_eq!(
        of(600, 0)[0],
        Duration::from_secs(2560),
        "no division by nothing"
    );
}

#[test]
fn gaps_are_reported_twice_and_shrink_when_packets_come_late() {
    let mut arrivals = arrivals();
    for (at, number) in [(1, 0), (2, 1), (5, 6), (6, 7), (9, 9)] {
        arrivals.on_packet(ms(at), &packet(number), SILENCE);
    }
    let whole = vec![gap(1, 4, 2000, 5000), gap(7, 1, 6000, 9000)];
    assert_eq!(arrivals.report(ms(10)).gaps, whole);
    // The middle of the first one, and all of the second one.
    arrivals.on_packet(ms(11), &packet(3), SILENCE);
    arrivals.on_packet(ms(11), &packet(8), SILENCE);
    arrivals.on_packet(ms(11), &packet(3), SILENCE);
    let rest = vec![gap(1, 1, 2000, 5000), gap(3, 2, 5000, 5000)];
    assert_eq!(arrivals.report(ms(12)).gaps, rest);
    assert_eq!(arrivals.report(ms(13)).gaps, []);
    for number in 0..100 {
        arrivals.on_packet(ms(20 + number), &packet(20 + 2 * number), SILENCE);
    }
    let report = arrivals.report(ms(200));
    assert_eq!(report.gaps.len(), 16);
    assert_eq!(report.gaps[15], gap(216, 1, 118_000, 119_000), "the newest");
}

#[test]
fn what_is_missing_after_a_silence_does_not_count_as_loss() {
    let mut arrivals = arrivals();
    for number in (0..100).filter(|number| number % 10 != 5) {
        arrivals.on_packet(ms(number), &packet(number), SILENCE);
    }
    for number in 0..200 {
        arrivals.on_packet(ms(1000 + number), &packet(150 + number), SILENCE);
    }
    let [packets, lost, bursts] = arrivals.report(ms(1300)).counts;
    // The last 64 are not judged yet, and 50 are excluded.
    assert_eq!((packets, lost, bursts), (350 - 50 - 64, 10, 10));
}

#[test]
fn what_a_report_says_of_packets_is_what_came() {
    let mut arrivals = arrivals();
    assert_eq!(arrivals.report(ms(1)).highest, None);
    for (at, number) in [(5, 0), (6, 4), (8, 3)] {
        arrivals.on_packet(ms(at), &packet(number), SILENCE);
    }
    let report = arrivals.report(ms(9));
    let highest = Highest {
        number: 4,
        arrived_us: 6000,
        held_us: 3000,
    };
    assert_eq!(report.highest, Some(highest));
    assert_eq!((report.packets, report.bytes, report.marked), (3, 3000, 1));
    assert_eq!(arrivals.highest(), Some(4));
}

#[test]
fn many_ranges_are_all_reported_in_turn_and_the_newest_in_every_other_report() {
    let mut arrivals = arrivals();
    let held: BTreeSet<u64> = (0..500).map(|n| 2 * n + 1).collect();
    assert!(held.iter().all(|seq| arrivals.on_segment(*seq)));
    let mut reported = BTreeSet::new();
    for turn in 0..2 * 500_u64.div_ceil(RANGES_MAX as u64) {
        let report = arrivals.report(ms(turn));
        assert!(report.ranges.len() <= RANGES_MAX);
        let Span { from, until } = report.span;
        let listed: BTreeSet<u64> = report.ranges.into_iter().flatten().collect();
        let true_there: BTreeSet<u64> = held.range(from..until).copied().collect();
        assert_eq!(
            listed, true_there,
            "segments in the span are reported completely"
        );
        if turn % 2 == 0 {
            assert!(listed.contains(&999) && until == u64::MAX);
        } else {
            reported.extend(listed);
        }
    }
    assert_eq!(reported, held);
}

#[test]
fn what_is_too_far_ahead_or_too_scattered_is_not_taken() {
    let mut arrivals = arrivals();
    assert!(!arrivals.on_segment(AHEAD_MAX));
    assert!(!arrivals.on_segment(u64::MAX));
    for seq in 1..=KEPT_MAX as u64 {
        assert!(arrivals.on_segment(seq * 2));
    }
    assert!(!arrivals.on_segment(KEPT_MAX as u64 * 2 + 2));
    assert_eq!(arrivals.refused(), 3);
    assert!(arrivals.on_segment(0), "the one that is waited for");
    assert!(arrivals.on_segment(1) && arrivals.below() == 3);
}

proptest! {
    #[test]
    fn a_report_says_what_arrived(seqs in prop::collection::vec(0_u64..80, 1..300)) {
        let (mut arrivals, mut model) = (arrivals(), BTreeSet::new());
        for seq in seqs {
            prop_assert_eq!(arrivals.on_segment(seq), model.insert(seq));
            let report = arrivals.report(ms(1));
            prop_assert_eq!(report.below, (0..).find(|n| !model.contains(n)).unwrap());
            prop_assert_eq!(report.span, Span::default());
            let listed: Vec<u64> = (0..report.below).chain(report.ranges.into_iter().flatten()).collect();
            prop_assert!(listed.iter().eq(model.iter()));
        }
    }

    #[test]
    fn gaps_are_what_has_not_arrived(order in prop::collection::vec(0_u64..40, 1..40)) {
        let (mut gaps, mut seen, mut highest) = (Gaps::default(), BTreeSet::new(), None);
        let started = order.first().copied();
        for number in order {
            seen.insert(number);
            match highest {
                Some(known) if number < known => gaps.fill(number, 0),
                Some(known) if number > known + 1 => {
                    gaps.push(gap(known, number - known - 1, 0, 0));
                }
                _ => {}
            }
            highest = highest.max(Some(number));
        }
        let first = started.unwrap_or(0);
        let missing: Vec<u64> = (first..highest.unwrap_or(0)).filter(|n| !seen.contains(n)).collect();
        let reported: Vec<u64> = gaps.take().iter().flat_map(|gap| gap.before + 1..=gap.before + gap.missing).collect();
        // Before the first gap there is none; the oldest may have made room.
        prop_assert!(missing.ends_with(&reported), "{missing:?} {reported:?}");
        prop_assert!(reported.len() == missing.len() || reported.len() >= 16);
    }
}
