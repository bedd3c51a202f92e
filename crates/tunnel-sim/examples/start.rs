//! New flows over 600 ms: time until the first byte of the answer, and until all of it.
//!
//!     cargo run --release -p tunnel-sim --example start [SEEDS]

use std::time::Duration;

use tunnel::class::Class;
use tunnel_sim::rig::{Rig, config, spread};

const RTT: Duration = Duration::from_millis(600);

/// Returns the round trips until the first byte and until the last byte of an answer, beyond its
/// transmission time on the link.
fn page(rate: u64, loss: &str, bytes: u64, seed: u64) -> (f64, f64) {
    let link = format!("rate={rate}bit,delay=300ms,queue=100%bdp{loss}");
    let mut rig = Rig::new(&link, seed, [true, false].map(|i| config(i, rate, RTT)));
    rig.run(Duration::from_secs(5), |_| false);
    let begin = rig.now;
    let stream = rig.sessions[0]
        .open(Class::Normal, 0, b"192.0.2.1:80")
        .expect("first");
    rig.sessions[0].written(stream, 300);
    let mut answered = false;
    let mut first = None;
    rig.run(begin + Duration::from_secs(60), |rig| {
        let progress = rig.progress[0].get(&stream).copied().unwrap_or_default();
        if progress.readable > 0 && first.is_none() {
            first = Some(rig.now);
        }
        progress.finished.is_some()
            || !answered && rig.readable(stream) >= 300 && {
                answered = true;
                true
            }
    });
    rig.sessions[1].written(stream, bytes);
    rig.sessions[1].finish(stream);
    rig.run(begin + Duration::from_secs(60), |rig| {
        let progress = rig.progress[0].get(&stream).copied().unwrap_or_default();
        if progress.readable > 0 && first.is_none() {
            first = Some(rig.now);
        }
        progress.finished.is_some()
    });
    let on_link = Duration::from_secs_f64(bytes as f64 * 8.0 / rate as f64);
    let trips = |time: Duration| time.as_secs_f64() / RTT.as_secs_f64();
    let first = first.map_or(f64::NAN, |at| trips(at - begin));
    (first, trips((rig.now - begin).saturating_sub(on_link)))
}

fn main() {
    let seeds = std::env::args().nth(1).and_then(|n| n.parse().ok());
    let seeds: u64 = seeds.unwrap_or(5);
    println!(
        "| rate | loss | answer | first byte, RTT | all, without time on the link, RTT | max |"
    );
    println!("|---|---|---|---|---|---|");
    for rate in [10_000_000, 500_000] {
        for (name, loss) in [("0", ""), ("2 %", ",loss=2%")] {
            let runs = (0..seeds).map(|seed| page(rate, loss, 30_000, seed));
            let (mut first, mut all): (Vec<_>, Vec<_>) = runs.unzip();
            let (all, _, most) = spread(&mut all);
            println!(
                "| {rate} bit/s | {name} | 30 kB | {:.3} | {all:.3} | {most:.3} |",
                spread(&mut first).0
            );
        }
    }
}
