//! Goodput of a bulk stream on links that lose packets, as a share of rate x (1 - loss).
//!
//!     cargo run --release -p tunnel-sim --example loss [SEEDS]

use std::time::Duration;

use tunnel::class::Class;
use tunnel_sim::rig::{Rig, config, spread};
use winkemu_link::Direction;

struct Cell {
    name: &'static str,
    link: &'static str,
    rate: u64,
    rtt: Duration,
    loss: f64,
}

/// Goodput after the first 5 s, and the share of packets that the queue dropped.
fn measure(cell: &Cell, seed: u64, class: Class) -> (f64, f64) {
    let sides = [true, false].map(|initiator| config(initiator, cell.rate, cell.rtt));
    let mut rig = Rig::new(cell.link, seed, sides);
    let stream = rig.upload(class, 1 << 40);
    rig.run(Duration::from_secs(5), |_| false);
    let before = rig.readable(stream);
    rig.run(Duration::from_secs(65), |_| false);
    let bits = (rig.readable(stream) - before) as f64 * 8.0 / 60.0;
    let stats = rig.link.stats(Direction::AtoB);
    let dropped = stats.dropped.queue_full as f64 / stats.offered.max(1) as f64;
    (bits / (cell.rate as f64 * (1.0 - cell.loss)), dropped)
}

fn main() {
    let seeds = std::env::args().nth(1).and_then(|n| n.parse().ok());
    let seeds: u64 = seeds.unwrap_or(5);
    println!(
        "| link | loss | bulk: share of rate x (1 - loss) | least..most | dropped by the queue | normal |"
    );
    println!("|---|---|---|---|---|---|");
    let geo = |loss| Cell {
        name: "10 Mbit/s, 600 ms",
        link: match loss {
            0 => "rate=10mbit,delay=300ms,queue=100%bdp",
            1 => "rate=10mbit,delay=300ms,queue=100%bdp,loss=0.1%",
            10 => "rate=10mbit,delay=300ms,queue=100%bdp,loss=1%",
            20 => "rate=10mbit,delay=300ms,queue=100%bdp,loss=2%",
            50 => "rate=10mbit,delay=300ms,queue=100%bdp,loss=5%",
            _ => "rate=10mbit,delay=300ms,queue=100%bdp,loss=8%",
        },
        rate: 10_000_000,
        rtt: Duration::from_millis(600),
        loss: f64::from(loss) / 1000.0,
    };
    for cell in [0, 1, 10, 20, 50, 80].map(geo) {
        let mut bulk = Vec::new();
        let mut normal = Vec::new();
        let mut drops = Vec::new();
        for seed in 0..seeds {
            let (share, dropped) = measure(&cell, seed, Class::Bulk);
            bulk.push(share);
            drops.push(dropped);
            normal.push(measure(&cell, seed, Class::Normal).0);
        }
        let (median, least, most) = spread(&mut bulk);
        println!(
            "| {} | {} % | {median:.3} | {least:.3}..{most:.3} | {:.4} | {:.3} |",
            cell.name,
            cell.loss * 100.0,
            spread(&mut drops).0,
            spread(&mut normal).0
        );
    }
}
