//! Goodput of bulk and normal streams that fill lossy links, as a share of rate x (1 - loss).
//!
//!     cargo run --release -p tunnel-sim --example loss [SEEDS]

use std::time::Duration;

use tunnel::class::Class;
use tunnel_sim::rig::{Rig, config, spread};
use winkemu_link::Direction;

/// Packet length for which the loss from bit errors is stated.
const FULL: i32 = 1500;

struct Cell {
    name: &'static str,
    link: String,
    rate: u64,
    rtt: Duration,
    loss: f64,
}

/// GEO (scenarios/tunnel-loss.toml).
fn geo(loss: f64) -> Cell {
    Cell {
        name: "10 Mbit/s, 600 ms",
        link: format!(
            "rate=10mbit,delay=300ms,queue=100%bdp,loss={}%",
            loss * 100.0
        ),
        rate: 10_000_000,
        rtt: Duration::from_millis(600),
        loss,
    }
}

/// Slow link in the field with bit errors (scenarios/tunnel-harsh.toml).
fn field(ber: f64) -> Cell {
    Cell {
        name: "500 kbit/s, 528 ms",
        link: format!("rate=500kbit,delay=264ms,queue=100%bdp,ber={ber}"),
        rate: 500_000,
        rtt: Duration::from_millis(528),
        loss: 1.0 - (1.0 - ber).powi(8 * FULL),
    }
}

/// Returns the goodput after the first 5 s, and the share of packets dropped by the queue.
fn measure(cell: &Cell, seed: u64, class: Class) -> (f64, f64) {
    let sides = [true, false].map(|initiator| config(initiator, cell.rate, cell.rtt));
    let mut rig = Rig::new(&cell.link, seed, sides);
    let stream = rig.upload(class, 1 << 40);
    rig.run(Duration::from_secs(5), |_| false);
    let before = rig.readable(stream);
    rig.run(Duration::from_secs(65), |_| false);
    let bits = (rig.readable(stream) - before) as f64 * 8.0 / 60.0;
    let stats = rig.link.stats(Direction::AtoB);
    let dropped = stats.dropped.queue_full as f64 / stats.offered.max(1) as f64;
    (bits / (cell.rate as f64 * (1.0 - cell.loss)), dropped)
}

fn row(cell: &Cell, seeds: u64) {
    let mut dropped: f64 = 0.0;
    let shares = [Class::Bulk, Class::Normal].map(|class| {
        let mut shares: Vec<_> = (0..seeds)
            .map(|seed| {
                let (share, lost) = measure(cell, seed, class);
                dropped = dropped.max(lost);
                share
            })
            .collect();
        let (median, minimum, most) = spread(&mut shares);
        format!("{median:.3} ({minimum:.3}..{most:.3})")
    });
    println!(
        "| {} | {:.1} % | {} | {} | {dropped:.4} |",
        cell.name,
        cell.loss * 100.0,
        shares[0],
        shares[1]
    );
}

fn main() {
    let seeds = std::env::args().nth(1).and_then(|n| n.parse().ok());
    let seeds: u64 = seeds.unwrap_or(5);
    println!("Share of rate x (1 - loss); median (min..max) of {seeds} seeds\n");
    println!("| link | loss | bulk | normal | maximum dropped by the queue |");
    println!("|---|---|---|---|---|");
    let geo = [0.0, 0.001, 0.01, 0.02, 0.05, 0.08].map(geo);
    let field = [8.8e-8, 8.8e-7, 8.9e-6, 1.8e-5, 4.5e-5, 7.4e-5].map(field);
    for cell in geo.iter().chain(&field) {
        row(cell, seeds);
    }
}
