//! Behaviour of a session with a reliable carrier.

use super::{super::SessionStats, *};
use crate::class::Class;

/// Returns two streams of side 0 with this to send. One in twenty packets of that side is lost for
/// two seconds, so that repair packets are in use.
fn lossy() -> (Pair, [StreamId; 2]) {
    let mut pair = Pair::with(|initiator| SessionConfig {
        stream_credit: 1 << 20,
        ..config(initiator)
    });
    let session = &mut pair.sides[0].session;
    let streams = [Class::Interactive, Class::Normal];
    let streams = streams.map(|class| session.open(class, 0, b"").expect("few"));
    pair.loses = Box::new(|n, side, _| side == 0 && n % 20 == 7);
    write(&mut pair, streams, 1000);
    assert!(pair.sides[0].session.path().fec_overhead > 0.0);
    (pair, streams)
}

/// Writes a message each, `times` times, every two milliseconds.
fn write(pair: &mut Pair, streams: [StreamId; 2], times: usize) {
    for _ in 0..times {
        for stream in streams {
            pair.sides[0].write(stream, &[7; 100]);
        }
        pair.run(Duration::from_millis(2));
    }
}

fn set_reliable(pair: &mut Pair, reliable: bool) {
    for side in &mut pair.sides {
        side.session.set_reliable(reliable);
    }
}

/// Returns the changes of counters since then.
fn since(pair: &Pair, before: &SessionStats) -> [u64; 3] {
    let now = pair.sides[0].session.stats();
    [
        now.repairs_sent - before.repairs_sent,
        now.segments_retransmitted - before.segments_retransmitted,
        now.segments_repeated - before.segments_repeated,
    ]
}

fn is_complete(pair: &Pair, streams: [StreamId; 2]) -> bool {
    let sides = &pair.sides;
    let all = |stream| sides[1].readable(stream) == sides[0].bytes.written[&stream].len() as u64;
    streams.into_iter().all(all)
}

#[test]
fn where_nothing_is_lost_nothing_is_repaired_or_sent_again_however_late_it_is() {
    let (mut pair, streams) = lossy();
    pair.loses = Box::new(|_, _, _| false);
    pair.run(20 * DELAY);
    set_reliable(&mut pair, true);
    let before = pair.sides[0].session.stats();
    let loss = pair.sides[0].session.path().loss;
    write(&mut pair, streams, 200);
    // A connection stalls while TCP retransmits.
    pair.stalled = pair.now + 15 * DELAY;
    write(&mut pair, streams, 2000);
    pair.run(20 * DELAY);
    assert!(is_complete(&pair, streams));
    assert_eq!(since(&pair, &before), [0; 3]);
    // Loss statistics of the other carrier are kept.
    assert_eq!(pair.sides[0].session.path().loss, loss);
    set_reliable(&mut pair, false);
    write(&mut pair, streams, 200);
    assert!(since(&pair, &before)[0] > 200, "repair packets resume");
}

#[test]
fn what_a_connection_took_with_it_goes_again() {
    let (mut pair, streams) = lossy();
    set_reliable(&mut pair, true);
    pair.loses = Box::new(|_, _, _| true);
    write(&mut pair, streams, 10);
    pair.loses = Box::new(|_, _, _| false);
    pair.run(40 * DELAY);
    assert!(is_complete(&pair, streams));
}
