//! Speed of the first transfers of a session over a link without a configured rate.

use std::time::Duration;

use tunnel::{class::Class, session::Rate};
use tunnel_sim::rig::{Rig, config};

const RATE: u64 = 16_000_000;
const LEN: u64 = 990_000;

/// Requests an answer of [`LEN`] bytes. Returns its duration relative to a round trip plus its
/// transmission time.
fn transfer(rig: &mut Rig, rtt: Duration) -> f64 {
    let begin = rig.now;
    let until = begin + Duration::from_secs(60);
    let stream = rig.sessions[0]
        .open(Class::Normal, 0, b"192.0.2.1:80")
        .expect("below the limit");
    rig.sessions[0].written(stream, 100);
    rig.run(until, |rig| rig.readable(stream) >= 100);
    rig.sessions[1].written(stream, LEN);
    rig.sessions[1].finish(stream);
    let finished = |rig: &Rig| rig.progress[0].get(&stream).and_then(|p| p.finished);
    rig.run(until, |rig| finished(rig).is_some());
    let took = finished(rig).expect("finished transfer") - begin;
    let ideal = rtt + Duration::from_secs_f64(LEN as f64 * 8.0 / RATE as f64);
    took.as_secs_f64() / ideal.as_secs_f64()
}

/// Returns two ends that have been idle for 5 s.
fn idle(rtt: Duration) -> Rig {
    let link = format!("rate={RATE}bit,delay={}us,queue=1MB", rtt.as_micros() / 2);
    let ends = [true, false].map(|initiator| {
        let mut config = config(initiator, RATE, rtt);
        config.rate = Rate::Auto;
        config.stream_credit = 4 * LEN;
        config
    });
    let mut rig = Rig::new(&link, 1, ends);
    rig.run(Duration::from_secs(5), |_| false);
    rig
}

#[test]
fn transfers_after_silences_are_as_fast_as_the_link() {
    for (rtt, most) in [(10, 1.12), (50, 1.2)] {
        let rtt = Duration::from_millis(rtt);
        let mut rig = idle(rtt);
        // The first one by its packet train, which measures the queue that it causes.
        for number in 0..5 {
            let times = transfer(&mut rig, rtt);
            assert!(times < most, "transfer {number} over {rtt:?}: {times:.2}");
            rig.run(rig.now + Duration::from_secs(4), |_| false);
        }
    }
}

#[test]
fn the_train_costs_one_round_trip_once() {
    for rtt in [250, 500] {
        let rtt = Duration::from_millis(rtt);
        let mut rig = idle(rtt);
        let first = transfer(&mut rig, rtt);
        assert!(
            first < 1.75,
            "over {rtt:?} it takes {first:.2} times as long"
        );
        rig.run(rig.now + Duration::from_secs(5), |_| false);
        let second = transfer(&mut rig, rtt);
        assert!(
            second < 1.1,
            "over {rtt:?} it takes {second:.2} times as long again"
        );
    }
}
