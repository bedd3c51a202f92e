//! Independence of draws: a seed decides the same, whatever else changes.

use super::*;

/// Indices of the packets, out of 2,000 sent with these gaps, that arrive.
fn survivors(options: &str, seed: u64, gap: impl Fn(u64) -> Nanos) -> Vec<u64> {
    let mut engine = Engine::new(&config(options), seed);
    let (mut now, mut indices) = (0, Vec::new());
    for k in 0..2000 {
        engine.handle_packet(Direction::AtoB, &[0; 500], now);
        now += gap(k);
        indices.extend(drain(&mut engine, now).iter().map(|a| a.packet.index));
    }
    indices.extend(drain(&mut engine, FOREVER).iter().map(|a| a.packet.index));
    indices.sort_unstable();
    indices.dedup();
    indices
}

const LOSSY: &str = "loss=3%,ber=1e-6,gilbert=0.01,0.3";

#[test]
fn decisions_do_not_depend_on_timing() {
    let steady = survivors(LOSSY, 1, |_| MS);
    assert_eq!(steady, survivors(LOSSY, 1, |_| 0));
    assert_eq!(steady, survivors(LOSSY, 1, |k| (k * 7919) % 5 * MS));
    assert_ne!(steady, survivors(LOSSY, 2, |_| MS));
}

#[test]
fn one_model_does_not_move_another() {
    let base = survivors(LOSSY, 1, |_| MS);
    for more in [
        "jitter=5ms",
        "duplicate=10%",
        "corrupt=10%",
        "delay=1s",
        "rate=100mbit",
    ] {
        assert_eq!(
            base,
            survivors(&format!("{LOSSY},{more}"), 1, |_| MS),
            "{more}"
        );
    }
    // One model does not undo the loss of another.
    let less = survivors(&format!("{LOSSY},wink=p=0.3,i=50ms"), 1, |_| MS);
    assert!(less.iter().all(|index| base.contains(index)) && less.len() < base.len());
}

#[test]
fn a_queue_that_drops_does_not_shift_what_the_link_loses() {
    let all = survivors(LOSSY, 1, |_| MS);
    let some = survivors(&format!("{LOSSY},rate=1mbit,queue=3p"), 1, |_| MS);
    assert!(some.len() < all.len() && some.iter().all(|index| all.contains(index)));
}

#[test]
fn directions_draw_apart() {
    let mut engine = engine("loss=50%");
    for _ in 0..100 {
        for direction in Direction::BOTH {
            engine.handle_packet(direction, &[0; 100], 0);
        }
    }
    let arrivals = drain(&mut engine, FOREVER);
    let of = |direction| -> Vec<u64> {
        let mine = arrivals.iter().filter(|a| a.direction == direction);
        mine.map(|a| a.packet.index).collect()
    };
    assert_ne!(of(Direction::AtoB), of(Direction::BtoA));
}

/// Digest of every decision on 1,000 packets over a link with every stage enabled.
fn digest(seed: u64) -> u64 {
    let options = "rate=10mbit,delay=20ms,jitter=5ms,exponential,reorder=true,loss=2%,ber=1e-6,\
        gilbert=0.01,0.2,wink=p=0.1,i=7ms,onoff=up=90ms,down=3ms,duplicate=1%,corrupt=1%,\
        queue=20p,aqm=codel";
    let mut engine = Engine::new(&config(options), seed);
    engine.record();
    for k in 0..1000 {
        engine.handle_packet(Direction::AtoB, &[0; 1200], k * 900_000);
    }
    drain(&mut engine, FOREVER);
    let decisions = std::iter::from_fn(|| engine.poll_decision());
    let text = |decision: Decision| serde_json::to_string(&decision).unwrap();
    let bytes = decisions.flat_map(|decision| text(decision).into_bytes());
    bytes.fold(0, |digest, byte| splitmix::mix(digest ^ u64::from(byte)))
}

#[test]
fn what_a_seed_means_is_frozen() {
    // A change here changes every published result: it needs a reason and a changelog entry.
    assert_eq!(
        [1, 2].map(digest),
        [16_200_489_568_437_683_494, 6_415_205_900_751_149_221]
    );
}

#[test]
fn a_recording_replays_under_another_seed_and_other_timing() {
    let options = format!("{LOSSY},jitter=5ms,duplicate=5%,corrupt=5%,wink=p=0.2,i=9ms");
    let mut first = Engine::new(&config(&options), 1);
    first.record();
    for k in 0..1000 {
        first.handle_packet(Direction::AtoB, &[0; 300], k * MS);
    }
    drain(&mut first, FOREVER);
    let recorded: Vec<_> = std::iter::from_fn(|| first.poll_decision()).collect();
    assert_eq!(recorded.len(), 1000);
    let mut second = Engine::new(&config(&options), 99);
    second.replay(&recorded);
    second.record();
    for k in 0..1000 {
        second.handle_packet(Direction::AtoB, &[0; 300], k * 3 * MS);
    }
    drain(&mut second, FOREVER);
    let again: Vec<_> = std::iter::from_fn(|| second.poll_decision()).collect();
    let timeless = |decision: &Decision| match decision.fate {
        Fate::Dropped { cause } => Err(cause),
        Fate::Delivered {
            jitter,
            duplicate,
            corrupt_bit,
            ..
        } => Ok((jitter, duplicate, corrupt_bit)),
    };
    assert!(recorded.iter().map(timeless).eq(again.iter().map(timeless)));
}

#[test]
fn packets_beyond_a_recording_are_decided_by_chance() {
    let mut engine = engine("loss=100%");
    engine.replay(&[Decision {
        direction: Direction::AtoB,
        index: 0,
        bytes: 100,
        offered: 0,
        fate: Fate::Delivered {
            due: 7,
            jitter: 5,
            duplicate: false,
            corrupt_bit: None,
        },
    }]);
    for _ in 0..2 {
        engine.handle_packet(Direction::AtoB, &[0; 100], 0);
    }
    let arrivals = drain(&mut engine, FOREVER);
    assert_eq!(arrivals.len(), 1);
    assert_eq!(arrivals[0].at, 5, "jitter is replayed, not the time");
}
