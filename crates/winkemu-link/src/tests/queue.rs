//! Capacity of the queue, and the packets it drops when full.

use super::*;

fn indices(options: &str, sent: &[(Nanos, usize)]) -> Vec<u64> {
    through(options, sent)
        .iter()
        .map(|(index, _)| *index)
        .collect()
}

#[test]
fn a_queue_of_packets_holds_them_besides_the_one_being_sent() {
    let sent: Vec<_> = (0..6).map(|_| (0, 1000)).collect();
    assert_eq!(indices("rate=8mbit,queue=3p", &sent), [0, 1, 2, 3]);
    assert_eq!(indices("rate=8mbit,queue=0p", &sent), [0]);
}

#[test]
fn a_queue_of_bytes_takes_what_fits() {
    let sent = [(0, 1000), (0, 600), (0, 600), (0, 400), (0, 1)];
    assert_eq!(indices("rate=8mbit,queue=1000", &sent), [0, 1, 3]);
}

#[test]
fn room_is_free_at_the_instant_a_packet_leaves() {
    // The first packet is sent at 1 ms; then the second is on the wire and its place is free.
    let before = [(0, 1000), (0, 1000), (MS - 1, 1000)];
    assert_eq!(indices("rate=8mbit,queue=1p", &before), [0, 1]);
    let at = [(0, 1000), (0, 1000), (MS, 1000)];
    assert_eq!(indices("rate=8mbit,queue=1p", &at), [0, 1, 2]);
}

#[test]
fn drop_head_drops_the_oldest_that_wait() {
    let sent: Vec<_> = (0..6).map(|_| (0, 1000)).collect();
    assert_eq!(indices("rate=8mbit,queue=3p,aqm=head", &sent), [0, 3, 4, 5]);
    let sent = [(0, 500), (0, 500), (0, 500), (0, 900), (0, 2000)];
    assert_eq!(
        indices("rate=8mbit,queue=1000,aqm=head", &sent),
        [0],
        "packet fits no queue"
    );
    assert_eq!(
        indices("rate=8mbit,queue=1000,aqm=head", &sent[..4]),
        [0, 3]
    );
}

#[test]
fn a_share_of_the_bandwidth_delay_product() {
    // 10 Mbit/s times 600 ms: 750 kB.
    let mut engine = engine("rate=10mbit,delay=300ms,queue=100%bdp");
    for _ in 0..751 {
        engine.handle_packet(Direction::AtoB, &[0; 1000], 0);
    }
    assert_eq!(engine.queue_bytes(Direction::AtoB), 750_000);
    assert_eq!(engine.stats(Direction::AtoB).dropped.queue_full, 0);
    engine.handle_packet(Direction::AtoB, &[0; 1000], 0);
    let stats = engine.stats(Direction::AtoB);
    assert_eq!(
        (stats.dropped.queue_full, stats.queue_bytes_peak),
        (1, 750_000)
    );
}

#[test]
fn the_delay_of_both_directions_makes_the_product() {
    let mut options: LinkOptions = "rate=8mbit,delay=100ms,queue=50%bdp".parse().unwrap();
    options.ba = Some("delay=300ms,rate=80kbit".parse().unwrap());
    let config = options.resolve_without_files().unwrap();
    assert_eq!(config.bandwidth_delay_product(Direction::AtoB), 400_000);
    assert_eq!(config.bandwidth_delay_product(Direction::BtoA), 4_000);
    let mut engine = Engine::new(&config, 1);
    for _ in 0..1000 {
        engine.handle_packet(Direction::AtoB, &[0; 1000], 0);
        engine.handle_packet(Direction::BtoA, &[0; 1000], 0);
    }
    assert_eq!(engine.queue_bytes(Direction::AtoB), 200_000);
    assert_eq!(
        engine.queue_bytes(Direction::BtoA),
        15_000,
        "queue holds fewer than ten full packets"
    );
}

#[test]
fn directions_do_not_touch_each_other() {
    let mut engine = engine("rate=8mbit,queue=10p");
    for _ in 0..100 {
        engine.handle_packet(Direction::AtoB, &[0; 1000], 0);
    }
    engine.handle_packet(Direction::BtoA, &[0; 1000], 0);
    let arrivals = drain(&mut engine, MS);
    assert!(
        arrivals
            .iter()
            .any(|a| a.direction == Direction::BtoA && a.at == MS)
    );
    assert_eq!(engine.stats(Direction::BtoA).dropped.total(), 0);
}

#[test]
fn the_history_is_exact_however_late_the_loop_looks() {
    // Each packet takes 1 ms on the wire: two wait for a millisecond, then one, then none.
    let mut engine = engine("rate=8mbit,queue=2p");
    for _ in 0..4 {
        engine.handle_packet(Direction::AtoB, &[0; 1000], 0);
    }
    assert!(engine.poll_deliver(10 * MS).is_some());
    let history = engine.queue_history(Direction::AtoB);
    let figures = history.over(0, 2 * MS).unwrap();
    assert_eq!(
        (figures.mean, figures.p50, figures.max),
        (1500.0, 1000.0, 2000.0)
    );
    assert_eq!(history.over(0, SECOND).unwrap().mean, 300.0);
    assert_eq!(history.over(2 * MS, SECOND).unwrap().max, 0.0);
    let other = engine.queue_history(Direction::BtoA);
    assert_eq!(other.over(0, SECOND).unwrap(), Occupancy::default());
}
