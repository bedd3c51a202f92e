//! Tests of CoDel against RFC 8289.

use super::*;

/// Sends packets of 1000 B at 8 Mbit/s (1 ms each), one per `gap` for `length`.
fn run(options: &str, gap: Nanos, length: Nanos) -> (Vec<u64>, Vec<(u64, Nanos)>) {
    let mut engine = engine(&format!("rate=8mbit,queue=10000p,{options}"));
    engine.record();
    let mut arrivals = Vec::new();
    for k in 0..length / gap {
        arrivals.extend(drain(&mut engine, k * gap));
        engine.handle_packet(Direction::AtoB, &[0; 1000], k * gap);
    }
    arrivals.extend(drain(&mut engine, FOREVER));
    let decisions = std::iter::from_fn(|| engine.poll_decision());
    let dropped = decisions.filter(|d| {
        matches!(
            d.fate,
            Fate::Dropped {
                cause: Cause::CoDel
            }
        )
    });
    let dropped = dropped.map(|d| d.index).collect();
    (
        dropped,
        arrivals.iter().map(|a| (a.packet.index, a.at)).collect(),
    )
}

#[test]
fn without_a_standing_queue_nothing_is_dropped() {
    // Bursts of 4 every 4 ms wait up to 3 ms, below the target of 5 ms.
    let mut engine = engine("rate=8mbit,aqm=codel");
    for k in 0..5000 {
        for _ in 0..4 {
            engine.handle_packet(Direction::AtoB, &[0; 1000], k * 4 * MS);
        }
    }
    assert_eq!(engine.stats(Direction::AtoB).dropped.total(), 0);
}

#[test]
fn a_backlog_of_one_packet_is_no_standing_queue() {
    // At 80 kbit/s each packet takes 100 ms, far above the target, but none waits behind it.
    let sent: Vec<_> = (0..100).map(|k| (k * 90 * MS, 1000)).collect();
    let plain = through("rate=89kbit,queue=1p", &sent).len();
    assert_eq!(
        through("rate=89kbit,queue=1p,aqm=codel", &sent).len(),
        plain
    );
}

#[test]
fn dropping_starts_an_interval_after_the_target_is_passed_and_then_speeds_up() {
    // 1.25 packets arrive per departure: the queue grows by one in 4 ms.
    let (dropped, arrivals) = run("aqm=codel", 800_000, SECOND);
    // Packet k is offered at 0.8 k ms and, before any drop, dequeued at k ms: it waits 0.2 k ms.
    // Packet 25 is the first to wait 5 ms, at 25 ms; the first drop is the one dequeued at 125 ms.
    assert_eq!(dropped[0], 125);
    // A drop frees 1 ms of wire, so after n drops packet k is dequeued at (k - n) ms. The next
    // drops follow 100 ms / sqrt(1), sqrt(2), ... after one another (section 5.3).
    let mut due = 125 * MS;
    for (n, index) in dropped.iter().enumerate().skip(1).take(6) {
        due += (100.0 * MS as f64 / (n as f64).sqrt()) as u64;
        let dequeued = (index - n as u64) * MS;
        assert!(
            dequeued >= due && dequeued < due + MS,
            "drop {n} at {dequeued}, due {due}"
        );
    }
    assert!(arrivals.len() + dropped.len() == 1250);
}

#[test]
fn the_target_and_the_interval_are_parameters() {
    let (dropped, _) = run("aqm=codel:target=10ms,interval=50ms", 800_000, SECOND);
    // Packet 50 is the first to wait 10 ms.
    assert_eq!(dropped[0], 100);
}

#[test]
fn it_holds_a_moderate_overload_near_its_target_where_a_plain_queue_does_not() {
    // 2 % overload for a minute.
    let delays = |options: &str| {
        let (dropped, arrivals) = run(options, 980_000, 60 * SECOND);
        let late = arrivals.iter().filter(|(_, at)| *at > 50 * SECOND);
        let waits: Vec<_> = late.map(|(k, at)| (at - k * 980_000) / MS).collect();
        (
            dropped.len(),
            waits.iter().sum::<u64>() / waits.len() as u64,
        )
    };
    let (dropped, codel) = delays("aqm=codel");
    let (none, plain) = delays("aqm=tail");
    assert!(dropped > 0 && none == 0);
    assert!(codel < 30 && plain > 900, "{codel} ms, plain {plain} ms");
}

#[test]
fn a_full_queue_still_drops_at_its_tail() {
    let mut engine = engine("rate=8mbit,queue=10p,aqm=codel");
    for _ in 0..20 {
        engine.handle_packet(Direction::AtoB, &[0; 1000], 0);
    }
    assert_eq!(engine.stats(Direction::AtoB).dropped.queue_full, 9);
}
