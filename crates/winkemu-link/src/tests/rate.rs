//! Exactness of the rate.

use proptest::prelude::*;
use units::Rate;

use super::*;

/// Departure of each packet from a wire that was never idle: the first nanosecond by which all bits
/// can have been sent.
fn naive_departures(rate: u64, sizes: &[usize]) -> Vec<Nanos> {
    let mut bits = 0u128;
    let departure = |size: &usize| {
        bits += *size as u128 * 8;
        u64::try_from((bits * 1_000_000_000).div_ceil(rate.into())).unwrap()
    };
    sizes.iter().map(departure).collect()
}

fn departures(path: PathConfig, sizes: &[usize]) -> Vec<Nanos> {
    let mut engine = Engine::new(&LinkConfig::symmetric(path), 1);
    for size in sizes {
        engine.handle_packet(Direction::AtoB, &vec![0; *size], 0);
    }
    drain(&mut engine, FOREVER)
        .iter()
        .map(|arrival| arrival.at)
        .collect()
}

fn fixed(rate: u64) -> PathConfig {
    PathConfig {
        rate: RateModel::Fixed(Rate::from_bits_per_second(rate).unwrap()),
        queue: QueueConfig {
            limit: QueueLimit::Packets(1_000_000),
            aqm: Aqm::Tail,
        },
        ..PathConfig::default()
    }
}

#[test]
fn a_lone_packet_takes_its_serialisation_time() {
    // 200 B at 10 Mbit/s: 160 us.
    assert_eq!(departures(fixed(10_000_000), &[200]), [160_000]);
    // 1 B at 3 bit/s: 8/3 s, rounded up, never early.
    assert_eq!(departures(fixed(3), &[1]), [2_666_666_667]);
}

#[test]
fn overhead_takes_time_but_no_queue() {
    let sent = [(0, 100), (0, 100)];
    let times = through("rate=8mbit,overhead=25,queue=100", &sent);
    assert_eq!(times, [(0, 125_000), (1, 250_000)]);
}

#[test]
fn a_link_without_a_rate_takes_no_time() {
    assert_eq!(through("", &[(5, 1500), (5, 1500)]), [(0, 5), (1, 5)]);
}

#[test]
fn a_wire_that_was_idle_owes_nothing() {
    // 8/3 ns per byte: each lone packet takes 3 ns, whatever came before it.
    let sent: Vec<_> = (0..10).map(|k| (k * 100, 1)).collect();
    let times = through("rate=3Gbit/s", &sent);
    assert!(times.iter().all(|(k, at)| *at == k * 100 + 3), "{times:?}");
}

#[test]
fn millions_of_packets_do_not_drift() {
    // Each packet leaves a remainder of 10/7 ns: a rounding error would be 28 us by the end.
    use super::super::serialiser::{Pace, Serialiser};
    let pace = Pace {
        rate: Some(700_000_000),
        until: FOREVER,
    };
    let (mut wire, mut now) = (Serialiser::default(), 0);
    let count = 2_000_000;
    for _ in 0..count {
        wire.start(1500, now, pace);
        now = wire.deadline().unwrap();
        wire.step();
    }
    assert_eq!(
        now,
        (count * 12_000 * 1_000_000_000u128).div_ceil(700_000_000) as u64
    );
}

/// Bits sent (times a billion) by `now` at the rates of a trace, summed by nanosecond segment.
fn naive_work(steps: &[(Nanos, u64)], period: Nanos, now: Nanos) -> u128 {
    let round = |until: Nanos| -> u128 {
        let ends = steps.iter().skip(1).map(|step| step.0).chain([period]);
        let segments = steps.iter().zip(ends);
        let length = |from: Nanos, to: Nanos| to.min(until).saturating_sub(from);
        segments
            .map(|((from, rate), to)| u128::from(length(*from, to)) * u128::from(*rate))
            .sum()
    };
    u128::from(now / period) * round(period) + round(now % period)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_busy_wire_is_exact(
        rate in 1u64..200_000_000_000,
        sizes in prop::collection::vec(1usize..2000, 1..50),
    ) {
        prop_assert_eq!(departures(fixed(rate), &sizes), naive_departures(rate, &sizes));
    }

    #[test]
    fn a_busy_wire_of_changing_rate_is_exact(
        lengths in prop::collection::vec((1u64..50_000, 0u64..2_000_000_000), 1..6),
        sizes in prop::collection::vec(1usize..2000, 1..30),
    ) {
        let mut steps = Vec::new();
        let mut period = 0;
        for (length, rate) in lengths {
            steps.push((period, rate));
            period += length;
        }
        // Each round must let some bits through.
        steps[0].1 = steps[0].1.max(1_000_000);
        let path = PathConfig {
            rate: RateModel::Trace(trace::Trace::new(&steps, Some(period)).unwrap()),
            ..fixed(1)
        };
        let mut work = 0u128;
        for (size, at) in sizes.iter().zip(departures(path, &sizes)) {
            work += *size as u128 * 8_000_000_000;
            prop_assert!(naive_work(&steps, period, at) >= work, "early at {}", at);
            prop_assert!(naive_work(&steps, period, at - 1) < work, "late at {}", at);
        }
    }
}
