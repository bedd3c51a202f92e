//! Files over links that wink (reynolds2006 §3.2.1): the delivered bytes as a share of the link's
//! capacity while it was up, and the mean time against the bound T0 / (1 - p).
//!
//!     cargo run --release -p tunnel-sim --example wink [SEEDS [RTT_MS...]]
//!     cargo run --release -p tunnel-sim --example wink [SEEDS] lab
//!
//! The first form runs the whole grid, with a queue of one bandwidth-delay product. `lab` runs the
//! cells of scenarios/tunnel-wink.toml, with its queue.

use std::time::Duration;

use tunnel::{class::Class, session::Outages};
use tunnel_sim::rig::{Rig, config, spread};
use winkemu_link::{Direction, Engine, LinkOptions};

const RATE: u64 = 100_000_000;
const PS: [f64; 6] = [0.1, 0.2, 0.3, 0.4, 0.6, 0.8];
const INTERVALS_MS: [u64; 6] = [40, 100, 200, 260, 500, 1100];
const HOUR: Duration = Duration::from_secs(3600);

struct Outcome {
    /// Delivered, as a share of the link's capacity.
    share: f64,
    /// Time, as a share of the bound.
    time: f64,
}

/// Round trip in microseconds, p and interval.
type Cell = (u64, f64, u64);

/// Cells of the lab, measured at each of its round trips.
const LAB: [(f64, u64); 5] = [(0.1, 40), (0.4, 40), (0.4, 200), (0.2, 500), (0.6, 1100)];
const LAB_QUEUE: &str = "125kB";

fn options((rtt_us, p, interval_ms): Cell, queue: &str) -> String {
    let delay = rtt_us / 2;
    format!("rate=100mbit,delay={delay}us,queue={queue},wink=p={p},i={interval_ms}ms")
}

/// Returns the bytes of packets that pass the link from its beginning on, if the sender always has
/// one.
fn capacity(link: &str, seed: u64, time: Duration) -> f64 {
    let options: LinkOptions = link.parse().expect("options of a link");
    let options = options.resolve_without_files().expect("no files");
    let mut engine = Engine::new(&options, seed);
    let gap = 1500 * 8 * 1_000_000_000 / RATE;
    let mut now = 0;
    while now < time.as_nanos() as u64 {
        engine.handle_packet(Direction::AtoB, &[0; 1500], now);
        while let Some((_, packet)) = engine.poll_deliver(now) {
            engine.recycle(packet);
        }
        now += gap;
    }
    let stats = engine.stats(Direction::AtoB);
    let lost = stats.dropped.outage + stats.dropped.outage_in_flight;
    (stats.offered - lost) as f64 * 1500.0
}

fn measure(link: &str, rtt_us: u64, bytes: u64, p: f64, seed: u64, mode: Outages) -> Outcome {
    let rtt = Duration::from_micros(rtt_us);
    let sides = [true, false].map(|initiator| {
        let mut config = config(initiator, RATE, rtt);
        config.outages = mode;
        config
    });
    let mut rig = Rig::new(link, seed, sides);
    let stream = rig.upload(Class::Bulk, bytes);
    rig.run(HOUR, |rig| rig.finished(stream).is_some());
    let time = rig.finished(stream).expect("finished within an hour");
    let bound = bytes as f64 * 8.0 / RATE as f64 / (1.0 - p);
    Outcome {
        share: bytes as f64 / capacity(link, seed, time - rtt / 2),
        time: time.as_secs_f64() / bound,
    }
}

fn row(cell: Cell, queue: &str, seeds: u64) {
    let (rtt_us, p, interval_ms) = cell;
    let bytes = if interval_ms >= 500 { 200 } else { 20 } * 1_000_000;
    let link = options(cell, queue);
    let mut row = String::new();
    for mode in [Outages::After(Duration::from_secs(1)), Outages::Never] {
        let outcomes = (0..seeds).map(|seed| measure(&link, rtt_us, bytes, p, seed, mode));
        let (mut shares, times): (Vec<_>, Vec<_>) = outcomes
            .map(|outcome| (outcome.share, outcome.time))
            .unzip();
        let (median, minimum, most) = spread(&mut shares);
        let time = times.iter().sum::<f64>() / times.len() as f64;
        row += &format!(" {median:.3} | {minimum:.3}..{most:.3} | {time:.3} |");
    }
    println!("| {} | {p} | {interval_ms} |{row}", rtt_us as f64 / 1000.0);
}

fn grid(rtts: &[u64]) -> Vec<Cell> {
    let intervals = |rtt: u64| {
        let long = move |i: &u64| rtt < 600_000 || *i >= 500;
        INTERVALS_MS.into_iter().filter(long)
    };
    let of_rtt = |rtt| intervals(rtt).flat_map(move |i| PS.map(|p| (rtt, p, i)));
    rtts.iter().flat_map(|rtt| of_rtt(*rtt)).collect()
}

fn main() {
    let mut arguments = std::env::args().skip(1).peekable();
    let seeds: u64 = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(5);
    let lab = arguments.peek().is_some_and(|word| word == "lab");
    let rtts: Vec<u64> = arguments
        .filter_map(|rtt| rtt.parse::<f64>().ok())
        .map(|ms| (ms * 1000.0) as u64)
        .collect();
    let (cells, queue) = if lab {
        let cells = [500, 20_000].map(|rtt| LAB.map(|(p, i)| (rtt, p, i)));
        (cells.concat(), LAB_QUEUE)
    } else if rtts.is_empty() {
        (grid(&[500, 20_000, 600_000]), "100%bdp")
    } else {
        (grid(&rtts), "100%bdp")
    };
    println!(
        "| RTT ms | p | interval ms | default: share | min..max | time / bound | dedicated: share | min..max | time / bound |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for cell in cells {
        row(cell, queue, seeds);
    }
}
