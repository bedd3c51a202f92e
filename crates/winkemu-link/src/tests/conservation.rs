//! Conservation of packets: none is invented, lost without a count, or early.

use proptest::prelude::*;

use super::*;

/// Options that together enable every stage.
fn any_options() -> impl Strategy<Value = String> {
    let pick = |options: &'static [&'static str]| prop::sample::select(options);
    (
        pick(&["", "rate=1mbit", "rate=30mbit,overhead=18"]),
        pick(&["", "queue=5p", "queue=9kB,aqm=head", "queue=200p,aqm=codel"]),
        pick(&[
            "",
            "delay=20ms",
            "delay=3ms,jitter=9ms",
            "delay=3ms,jitter=9ms,reorder=true",
            "jitter=4ms,exponential",
        ]),
        pick(&["", "loss=10%", "ber=1e-5,gilbert=0.1,0.3", "loss=100%"]),
        pick(&[
            "",
            "wink=p=0.4,i=10ms",
            "periodic=up=9ms,down=3ms",
            "onoff=up=9ms,down=9ms",
            "outages=5ms+20ms,90ms+1s",
        ]),
        pick(&[
            "",
            "queued=hold",
            "in-flight=drop",
            "in-flight=hold",
            "queued=hold,in-flight=drop",
        ]),
        pick(&["", "duplicate=20%", "corrupt=20%,duplicate=5%"]),
    )
        .prop_map(|(a, b, c, d, e, f, g)| [a, b, c, d, e, f, g].join(","))
}

fn check_balance(engine: &Engine) {
    for direction in Direction::BOTH {
        let stats = engine.stats(direction);
        let ins = stats.offered + stats.duplicated;
        let outs = stats.delivered + stats.dropped.total() + stats.held;
        assert_eq!(ins, outs, "{stats:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn every_packet_is_accounted_for(
        options in any_options(),
        seed in 0u64..1000,
        traffic in prop::collection::vec((0u64..3_000_000, 20usize..1500, any::<bool>()), 1..300),
    ) {
        let config = config(&options);
        let mut engine = Engine::new(&config, seed);
        let (mut now, mut arrivals) = (0, Vec::new());
        for (gap, bytes, forth) in traffic {
            arrivals.extend(drain(&mut engine, now + gap));
            now += gap;
            let direction = if forth { Direction::AtoB } else { Direction::BtoA };
            engine.handle_packet(direction, &vec![7; bytes], now);
            check_balance(&engine);
        }
        arrivals.extend(drain(&mut engine, FOREVER));
        check_balance(&engine);
        let base = config.ab.delay.base.mean();
        for direction in Direction::BOTH {
            let stats = engine.stats(direction);
            prop_assert_eq!(stats.held, 0, "packets left inside");
            let mine: Vec<_> = arrivals.iter().filter(|a| a.direction == direction).collect();
            prop_assert_eq!(stats.delivered, mine.len() as u64);
            prop_assert!(mine.is_sorted_by_key(|a| a.at));
            if !config.ab.delay.reorder {
                prop_assert!(mine.is_sorted_by_key(|a| a.packet.index), "FIFO");
            }
        }
        for arrival in &arrivals {
            prop_assert_eq!(arrival.at, arrival.packet.due, "deadline is not exact");
            let bits = arrival.packet.bytes.len() as u64 * 8;
            let rate = config.ab.rate.mean().map_or(0, |rate| bits * SECOND / rate.bits_per_second());
            let minimum = arrival.packet.offered + nanos(base) + rate;
            prop_assert!(arrival.at + 1 >= minimum, "early: {} before {}", arrival.at, minimum);
        }
    }

    #[test]
    fn when_it_is_asked_changes_nothing(
        options in any_options(),
        gaps in prop::collection::vec(0u64..2_000_000, 1..150),
    ) {
        let config = config(&options);
        let run = |lazy: bool| {
            let mut engine = Engine::new(&config, 3);
            let (mut now, mut dues) = (0, Vec::new());
            for gap in &gaps {
                now += gap;
                if !lazy {
                    dues.extend(drain(&mut engine, now).into_iter().map(|a| a.packet));
                }
                engine.handle_packet(Direction::AtoB, &[1; 700], now);
            }
            // Poll once, late, as a delayed shell would.
            while let Some((_, packet)) = engine.poll_deliver(3600 * SECOND) {
                dues.push(packet);
            }
            dues
        };
        prop_assert_eq!(run(false), run(true));
    }
}

#[test]
fn packets_leave_their_memory_for_the_next() {
    let mut engine = engine("rate=100mbit,delay=1ms,loss=10%");
    for k in 0..1000 {
        engine.handle_packet(Direction::AtoB, &[0; 1500], k * 10 * MS);
        if let Some((_, packet)) = engine.poll_deliver(k * 10 * MS + 5 * MS) {
            engine.recycle(packet);
        }
    }
    assert_eq!(engine.buffers(), 1);
}

#[test]
fn a_pipe_that_holds_too_much_drops_and_says_so() {
    let mut engine = engine("delay=1h");
    let packet = vec![0; 60_000];
    // Start with a nearly full pipe: a test cannot fill a gigabyte.
    engine.fill_flight(Direction::AtoB, FLIGHT_BYTES_MAX - 2 * packet.len() as u64);
    for _ in 0..3 {
        engine.handle_packet(Direction::AtoB, &packet, 0);
    }
    let stats = engine.stats(Direction::AtoB);
    assert_eq!((stats.held, stats.dropped.pipe_full), (2, 1));
}

#[test]
fn an_arrival_is_the_packet_that_was_sent_but_for_a_flipped_bit() {
    let sent: Vec<u8> = (0..=255).collect();
    let mut engine = engine("corrupt=50%,delay=1ms");
    for _ in 0..1000 {
        engine.handle_packet(Direction::BtoA, &sent, 0);
    }
    let flipped = |arrival: &Arrival| -> u32 {
        let pairs = arrival.packet.bytes.iter().zip(&sent);
        pairs.map(|(a, b)| (a ^ b).count_ones()).sum()
    };
    let arrivals = drain(&mut engine, FOREVER);
    let changed = arrivals
        .iter()
        .filter(|arrival| flipped(arrival) == 1)
        .count();
    assert!(arrivals.iter().all(|arrival| flipped(arrival) <= 1));
    assert_eq!(engine.stats(Direction::BtoA).corrupted, changed as u64);
    // 3 sigma of binomial(1000, 1/2) are 47.
    assert!((453..=547).contains(&changed), "{changed}");
}
