//! Individual tests of each rule.

use std::time::Duration;

use super::bare::ms;
use crate::{
    delivery::{Delivery, Guard, ReportError},
    wire::{Gap, Highest, Report, Span},
};

const RTT: Duration = ms(100);

/// Sends segments 0 to `count`, one each millisecond from 1000 ms on, as packets of the same
/// numbers.
fn sent(count: u64, coded: bool) -> Delivery<u64> {
    let mut delivery = Delivery::new(RTT);
    for seq in 0..count {
        assert_eq!(delivery.push(seq, 1000, 0), seq);
        assert_eq!(
            delivery.on_sent(ms(1000 + seq), Some(seq), 1000, coded),
            seq
        );
    }
    delivery
}

/// Creates a report made 50 ms before it arrives, by a clock that is an hour ahead.
fn report(now: u64, highest: u64, below: u64, ranges: &[(u64, u64)]) -> Report {
    let number = highest;
    Report {
        highest: Some(Highest {
            number,
            arrived_us: 3_600_000_000 + (1000 + number + 50) * 1000,
            held_us: (now - 50).saturating_sub(1000 + number + 50) * 1000,
        }),
        below,
        ranges: ranges.iter().map(|(from, until)| *from..*until).collect(),
        ..Report::default()
    }
}

fn take(delivery: &mut Delivery<u64>, now: u64, report: &Report) -> (u64, Vec<u64>) {
    let mut acked = Vec::new();
    let outcome = delivery
        .on_report(ms(now), report, |seq| acked.push(seq))
        .unwrap();
    (outcome.lost, acked)
}

#[test]
fn three_later_packets_make_a_loss() {
    let mut delivery = sent(6, false);
    assert_eq!(
        take(&mut delivery, 1103, &report(1103, 3, 1, &[(2, 4)])),
        (0, vec![0, 2, 3])
    );
    assert_eq!(
        take(&mut delivery, 1104, &report(1104, 4, 1, &[(2, 5)])),
        (1, vec![4])
    );
    assert_eq!(delivery.next_resend(), Some((1, &mut 1, ms(1001))));
    assert_eq!(
        delivery.next_resend(),
        Some((1, &mut 1, ms(1001))),
        "until it is sent"
    );
    assert_eq!(delivery.in_flight().segments, 1);
    assert_eq!(delivery.on_sent(ms(1105), Some(1), 900, false), 6);
    assert_eq!(delivery.next_resend(), None);
    assert_eq!(delivery.in_flight().bytes, 1900);
    assert_eq!(
        take(&mut delivery, 1205, &report(1205, 6, 6, &[])),
        (0, vec![1, 5])
    );
    assert!(delivery.is_empty() && delivery.in_flight().bytes == 0);
}

#[test]
fn the_last_ones_are_lost_when_their_time_is_over() {
    let mut delivery = sent(3, false);
    let lost = |delivery: &mut _, now| take(delivery, now, &report(now, 0, 1, &[])).0;
    assert_eq!(lost(&mut delivery, 1100), 0);
    // A round trip, and an eighth of it.
    assert_eq!(lost(&mut delivery, 1113), 0);
    assert_eq!(lost(&mut delivery, 1114), 1);
    assert_eq!(lost(&mut delivery, 1200), 1);
}

#[test]
fn a_report_that_was_held_is_judged_by_when_it_was_made() {
    let mut delivery = sent(3, false);
    take(&mut delivery, 1100, &report(1100, 0, 1, &[]));
    // Made at 1060, arrives at 1500.
    assert_eq!(take(&mut delivery, 1500, &report(1110, 0, 1, &[])).0, 0);
    assert_eq!(take(&mut delivery, 1501, &report(1501, 0, 1, &[])).0, 2);
}

#[test]
fn a_modem_that_held_reports_is_given_time_to_deliver_ours() {
    let mut delivery = sent(3, false);
    take(&mut delivery, 1100, &report(1100, 0, 1, &[]));
    take(&mut delivery, 9000, &report(1110, 0, 1, &[]));
    delivery.resume(ms(9000));
    assert_eq!(take(&mut delivery, 9001, &report(9001, 0, 1, &[])).0, 0);
    assert_eq!(take(&mut delivery, 9112, &report(9112, 0, 1, &[])).0, 0);
    assert_eq!(take(&mut delivery, 9113, &report(9113, 0, 1, &[])).0, 2);
    // A modem that drops has nothing to deliver.
    let mut delivery = sent(3, false);
    take(&mut delivery, 1100, &report(1100, 0, 1, &[]));
    delivery.resume(ms(9000));
    assert_eq!(take(&mut delivery, 9001, &report(9001, 0, 1, &[])).0, 2);
}

#[test]
fn a_report_that_is_late_as_packets_may_be_was_not_held() {
    // Made at ten seconds, by a clock that is an hour ahead; the highest packet came 300 ms after
    // it was sent.
    let report = |made: u64, below| Report {
        highest: Some(Highest {
            number: 0,
            arrived_us: 3_601_300_000,
            held_us: (made - 1300) * 1000,
        }),
        below,
        ..Report::default()
    };
    let after = |late: u64| {
        let mut delivery = Delivery::new(ms(600));
        for seq in 0..3 {
            delivery.push(seq, 1000, 0);
            delivery.on_sent(ms(1000 + seq), Some(seq), 1000, false);
        }
        take(&mut delivery, 1600, &report(1300, 1));
        delivery.resume(ms(9000));
        take(&mut delivery, 9000 + late, &report(8700, 1)).0
    };
    assert_eq!([after(0), after(20), after(149)], [2, 2, 2]);
    assert_eq!([after(151), after(600)], [0, 0]);
}

#[test]
fn what_was_held_before_a_silence_says_nothing_of_its_end() {
    let mut delivery = sent(3, false);
    take(&mut delivery, 1100, &report(1100, 0, 1, &[]));
    // A queue: made at 1105, arrives at 1200.
    take(&mut delivery, 1200, &report(1105, 0, 1, &[]));
    delivery.resume(ms(9000));
    assert_eq!(take(&mut delivery, 9001, &report(9001, 0, 1, &[])).0, 2);
}

#[test]
fn what_no_report_speaks_of_is_not_lost() {
    let mut delivery = sent(40, false);
    let mut later = report(1139, 39, 0, &[(1, 2), (9, 10)]);
    later.span = Span { from: 1, until: 10 };
    // All but the last three, as `below` itself is missing by definition.
    assert_eq!(take(&mut delivery, 1139, &later).0, 1 + 7);
    let mut rest = report(1140, 39, 0, &[(30, 40)]);
    rest.span = Span {
        from: 20,
        until: u64::MAX,
    };
    assert_eq!(take(&mut delivery, 1140, &rest).0, 10);
    assert_eq!(
        take(&mut delivery, 1141, &report(1141, 39, 0, &[(10, 40)])),
        (0, (10..30).collect())
    );
}

#[test]
fn coded_packets_wait_for_their_repairs() {
    let guard = Guard {
        packets: 10,
        time: ms(30),
    };
    for (coded, packets_later, time) in [(false, 3, 114), (true, 30, 144)] {
        let mut delivery = sent(60, coded);
        delivery.set_coded_guard(guard);
        let first = (1..60).find(|highest| {
            let report = report(1100 + highest, *highest, 0, &[(1, highest + 1)]);
            take(&mut delivery, 1100 + highest, &report).0 == 1
        });
        // A packet each millisecond: the time decides.
        assert_eq!(first, Some(packets_later));
        let mut delivery = sent(2, coded);
        delivery.set_coded_guard(guard);
        let first =
            (1101..1200).find(|now| take(&mut delivery, *now, &report(*now, 0, 1, &[])).0 == 1);
        assert_eq!(first, Some(1000 + time));
    }
}

#[test]
fn a_late_arrival_teaches_to_wait() {
    let mut delivery = sent(60, false);
    assert_eq!(delivery.reorder_time(), Duration::ZERO);
    assert_eq!(
        take(&mut delivery, 1110, &report(1110, 10, 0, &[(1, 11)])).0,
        1
    );
    delivery.on_sent(ms(1110), Some(0), 1000, false);
    assert_eq!(
        take(&mut delivery, 1120, &report(1120, 20, 21, &[]))
            .1
            .len(),
        11
    );
    // It came when it was 10 to 20 ms late.
    assert_eq!(delivery.reorder_time(), Duration::from_micros(22_500));
    assert_eq!(
        take(&mut delivery, 1140, &report(1140, 40, 21, &[(22, 41)])).0,
        0
    );
    assert_eq!(
        take(&mut delivery, 1144, &report(1144, 44, 21, &[(22, 45)])).0,
        1
    );
}

#[test]
fn in_silence_the_oldest_segment_is_repeated_but_not_all_the_time() {
    let mut delivery = sent(3, false);
    delivery.on_sent(ms(1003), Some(0), 1000, false);
    assert_eq!(delivery.repeat_at(), Some(ms(1001) + RTT / 16));
    assert_eq!(delivery.repeat_oldest(ms(1007)), None);
    for (now, seq) in [(1100, 1), (1101, 2), (1102, 0)] {
        assert_eq!(delivery.repeat_oldest(ms(now)).unwrap().0, seq);
        delivery.on_sent(ms(now), Some(seq), 1000, false);
    }
    assert_eq!(delivery.repeat_oldest(ms(1103)), None);
    assert_eq!(delivery.in_flight().segments, 3);
    assert!(delivery.flights[0].len() <= 4);
    assert_eq!(
        take(&mut delivery, 1300, &report(1300, 6, 3, &[])).1,
        [0, 1, 2]
    );
    assert_eq!(
        (delivery.repeat_at(), delivery.in_flight().segments),
        (None, 0)
    );
}

#[test]
fn what_was_repeated_at_the_end_of_a_long_silence_need_not_wait_for_its_time() {
    // Made at 8950: packets sent by then cannot have arrived if the link was down.
    let lost = |long: bool| {
        let mut delivery = sent(10, false);
        take(&mut delivery, 1100, &report(1100, 0, 1, &[]));
        for (seq, at) in [(1, 8930), (2, 8950), (3, 8951)] {
            delivery.on_sent(ms(at), Some(seq), 1000, false);
        }
        let lost = take(&mut delivery, 9000, &report(9000, 0, 1, &[])).0;
        delivery.resume(ms(9000));
        if long {
            delivery.resume_after_long(ms(9000));
        }
        let first = delivery.next_resend().map(|(seq, ..)| seq);
        (lost, delivery.lost.len(), first)
    };
    assert_eq!(lost(false), (6, 6, Some(4)));
    assert_eq!(lost(true), (6, 8, Some(1)));
}

#[test]
fn after_a_long_silence_the_first_ones_go_twice() {
    let mut delivery = sent(100, false);
    take(&mut delivery, 1100, &report(1100, 0, 1, &[]));
    assert_eq!(take(&mut delivery, 9000, &report(9000, 0, 1, &[])).0, 99);
    delivery.resume(ms(9000));
    delivery.resume_after_long(ms(9000));
    assert_eq!(delivery.next_copy(ms(9000)), None);
    let again = (9000..9090).map(|now| {
        let second = delivery.next_copy(ms(now)).map(|(seq, ..)| seq);
        let seq = second.unwrap_or_else(|| delivery.next_resend().unwrap().0);
        delivery.on_sent(ms(now), Some(seq), 1000, false);
        seq
    });
    let again: Vec<_> = again.collect();
    let times = |seq| again.iter().filter(|again| **again == seq).count();
    assert!((1..=8).all(|seq| times(seq) == 2), "{again:?}");
    assert!((9..80).all(|seq| times(seq) == 1), "{again:?}");
    // Later losses are retransmitted once, as usual.
    assert_eq!(delivery.next_copy(ms(9100)), None);
}

/// Loses segment 1 of 100 `losses` times. Returns the time from its last retransmission to a copy.
fn copied_after(loss: Option<f64>, losses: u64) -> Option<u64> {
    let mut delivery = sent(100, false);
    delivery.set_copies(loss);
    take(&mut delivery, 1200, &report(1200, 99, 1, &[(2, 100)]));
    for round in 1..=losses {
        let (now, number) = (1200 + round * 200, delivery.next_number());
        assert_eq!(delivery.next_resend().map(|(seq, ..)| seq), Some(1));
        delivery.on_sent(ms(now), Some(1), 1000, false);
        if let Some(at) = delivery.copy_at() {
            assert_eq!(delivery.next_copy(at - ms(1)), None);
            assert_eq!(delivery.next_copy(at), Some((1, &mut 1, ms(now))));
            delivery.on_sent(at, Some(1), 1000, false);
            assert_eq!(delivery.copy_at(), None, "one copy");
            assert_eq!(round, losses);
            return Some((at - ms(now)).as_millis() as u64);
        }
        for _ in 0..3 {
            delivery.on_sent(ms(now), None, 1000, false);
        }
        let all_but_1 = report(now + 100, number + 3, 1, &[(2, 100)]);
        assert_eq!(take(&mut delivery, now + 100, &all_but_1).0, 1);
    }
    None
}

#[test]
fn a_segment_lost_twice_goes_twice() {
    assert_eq!(copied_after(Some(0.0), 2), Some(3));
    assert_eq!(copied_after(Some(0.09), 2), Some(3));
    // Copies take at most 1 % of the rate.
    assert_eq!(copied_after(Some(0.11), 3), Some(3));
    assert_eq!(copied_after(Some(0.21), 3), Some(3));
    assert_eq!(copied_after(Some(0.22), 5), None);
    assert_eq!(copied_after(None, 5), None);
}

#[test]
fn copies_are_few_and_none_of_what_an_outage_took() {
    // Loses segments 100 to `until` twice, of 3000.
    let copies = |until: u64| {
        let mut delivery = sent(3000, false);
        delivery.set_copies(Some(0.0));
        let mut number = 2999;
        let mut copies = 0;
        for round in 1..=2 {
            let now = 4000 + round * 200;
            let report = report(now, number, 100, &[(until, 3000)]);
            assert_eq!(take(&mut delivery, now, &report).0, until - 100);
            while let Some((seq, ..)) = delivery.next_resend() {
                number = delivery.on_sent(ms(now), Some(seq), 1000, false);
            }
            while let Some((seq, ..)) = delivery.next_copy(ms(now + 20)) {
                delivery.on_sent(ms(now + 20), Some(seq), 1000, false);
                copies += 1;
            }
            for _ in 0..3 {
                number = delivery.on_sent(ms(now + 20), None, 1000, false);
            }
        }
        copies
    };
    assert_eq!(copies(101), 1);
    // None while an eighth of those in flight wait.
    assert_eq!(copies(110), 2);
    // The 16 saved up, and one more that 100 further packets allow.
    assert_eq!(copies(1100), 17);
}

#[test]
fn a_segment_that_has_arrived_is_not_copied() {
    let mut delivery = sent(100, false);
    delivery.set_copies(Some(0.0));
    take(&mut delivery, 1200, &report(1200, 99, 1, &[(2, 100)]));
    for (number, below) in [(100, 1), (104, 100)] {
        let now = 300 + number * 10;
        for seq in [Some(1), None, None, None] {
            delivery.on_sent(ms(now), seq, 1000, false);
        }
        assert_eq!(delivery.copy_at().is_some(), number == 104);
        let ranges = if below == 1 { &[(2, 100)][..] } else { &[] };
        take(
            &mut delivery,
            now + 100,
            &report(now + 100, number + 3, below, ranges),
        );
    }
    assert_eq!(delivery.copy_at(), None);
}

#[test]
fn the_window_is_round_trips_or_a_few_segments() {
    let mut delivery = Delivery::new(RTT);
    let open = |delivery: &Delivery<()>, rate| delivery.window_open(rate, ms(10), false);
    for _ in 0..64 {
        assert!(open(&delivery, 1));
        delivery.push((), 1000, 0);
    }
    assert!(!open(&delivery, 1));
    // 8 round trips and 3 spacings: 830 ms.
    assert!(!open(&delivery, 77_000) && open(&delivery, 77_200));
    assert!(delivery.window_open(1, ms(10), true));
}

/// A peer chooses the round trip, and with its credits how many parts a segment has.
#[test]
fn memory_of_unacknowledged_segments_closes_the_window() {
    let most = 1 << 20;
    for beyond in [0, 6400] {
        let mut delivery = Delivery::<[u64; 8]>::new(RTT).with_kept_max(most);
        let mut pushed = 0;
        while delivery.window_open(1 << 40, ms(10), false) {
            delivery.push([0; 8], 1000, beyond);
            pushed += 1;
        }
        let each = delivery.memory() / pushed + beyond;
        assert!(pushed * (beyond + 64) <= most + each, "{pushed} segments");
        assert!(pushed >= most / (beyond + 400), "{pushed} segments");
        let highest = pushed as u64 - 1;
        for seq in 0..=highest {
            delivery.on_sent(ms(1), Some(seq), 1000, false);
        }
        let all = report(1100, highest, highest + 1, &[]);
        let _ = delivery.on_report(ms(1100), &all, |_| {});
        assert!(delivery.window_open(1 << 40, ms(10), false));
    }
}

#[test]
fn segments_acknowledged_behind_a_missing_one_take_little_memory() {
    for reliable in [false, true] {
        let mut delivery = Delivery::new(RTT);
        delivery.set_reliable(reliable);
        for seq in 0..200_000 {
            assert_eq!(delivery.push(seq, 1000, 0), seq);
            delivery.on_sent(ms(seq / 100), Some(seq), 1000, seq % 2 == 0);
            if seq % 100 == 99 {
                // The highest packet tells nothing of the first.
                let now = 1000 + seq / 100;
                let (_, acked) = take(&mut delivery, now, &report(now, 1, 0, &[(1, seq + 1)]));
                assert_eq!(acked.len(), if seq == 99 { 99 } else { 100 });
            }
        }
        assert_eq!(delivery.span(), (200_000, 200_000_000));
        // 8 bytes for each, and slack.
        let memory = delivery.memory();
        assert!(memory < 3 << 20, "{memory} bytes");
        take(&mut delivery, 4000, &report(4000, 1, 200_000, &[]));
        assert!(delivery.is_empty());
        let memory = delivery.memory();
        assert!(memory < 1 << 20, "{memory} bytes");
    }
}

/// Adds a gap that ends behind the highest packet: it would hide all later ones.
fn with_gap(report: Report) -> Report {
    let gap = Gap {
        before: 0,
        missing: 2,
        before_us: 0,
        after_us: 0,
    };
    Report {
        gaps: vec![gap],
        ..report
    }
}

#[test]
fn absurd_reports_are_refused_and_change_nothing() {
    let mut delivery = sent(3, false);
    delivery.push(3, 1000, 0);
    let refused = [
        (report(1100, 3, 0, &[]), ReportError::NeverSent(3)),
        (report(1100, 2, 5, &[]), ReportError::NeverSent(4)),
        (
            report(1100, 2, 0, &[(1, u64::MAX)]),
            ReportError::NeverSent(u64::MAX - 1),
        ),
        (report(1100, 2, 2, &[(1, 3)]), ReportError::Order(1)),
        (report(1100, 2, 0, &[(2, 3), (1, 2)]), ReportError::Order(1)),
        (report(1100, 2, 0, &[(2, 2)]), ReportError::Order(2)),
        (with_gap(report(1100, 2, 0, &[])), ReportError::Order(0)),
    ];
    for (report, error) in refused {
        let outcome = delivery.on_report(ms(1100), &report, |_| panic!("acknowledged"));
        assert_eq!(outcome, Err(error));
    }
    assert_eq!(delivery.in_flight().segments, 3);
    // Times are untrusted.
    for (arrived_us, held_us) in [
        (0, 0),
        (u64::MAX, u64::MAX),
        (u64::MAX, 0),
        (0, u64::MAX),
        (5, 5),
    ] {
        let mut report = report(1100, 2, 0, &[]);
        let number = report.highest.unwrap().number;
        report.highest = Some(Highest {
            number,
            arrived_us,
            held_us,
        });
        take(&mut delivery, 1100, &report);
    }
    assert_eq!(delivery.smoothed_rtt(), ms(98));
    assert_eq!(
        take(&mut delivery, 1200, &report(1200, 2, 3, &[])).1,
        [0, 1, 2]
    );
}

#[test]
fn a_sample_is_taken_of_each_highest_packet_and_not_across_a_silence() {
    let mut delivery = sent(10, false);
    delivery.set_app_limited();
    let sample = |delivery: &mut Delivery<u64>, now, highest| {
        let report = report(now, highest, 0, &[]);
        delivery.on_report(ms(now), &report, |_| ()).unwrap().sample
    };
    let first = sample(&mut delivery, 1104, 4).unwrap();
    assert_eq!((first.number, first.sent_at, first.rtt), (4, ms(1004), RTT));
    assert_eq!((first.sent_packets, first.app_limited), (5, true));
    assert_eq!(sample(&mut delivery, 1110, 4), None);
    assert_eq!(sample(&mut delivery, 1110, 3), None);
    assert_eq!(delivery.unanswered_since(3), Some(ms(1007)));
    assert_eq!(delivery.unanswered_since(30), None);
    for number in 10..20 {
        delivery.on_sent(ms(1000 + number), None, 100, false);
    }
    delivery.resume(ms(1012));
    assert_eq!(
        sample(&mut delivery, 1111, 11),
        None,
        "sent before the silence ended"
    );
    let last = sample(&mut delivery, 1113, 13).unwrap();
    assert!(last.app_limited, "its span includes the pause");
    assert_eq!(delivery.sent_at(13), Some(ms(1013)));
    let next = sample(&mut delivery, 1114, 14).unwrap();
    assert!(!next.app_limited);
}
