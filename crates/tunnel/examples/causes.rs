//! Loss classifier against the truth, per lost packet: `cargo run --release -p tunnel --example
//! causes`.

#[path = "../tests/emulated/channel.rs"]
mod channel;
#[path = "../tests/emulated/receiver.rs"]
mod receiver;

use channel::{CHANNELS, Confusion, confusion};

/// Bytes of a packet on the link.
const PACKET: usize = 1468;
const SEEDS: u64 = 5;
const SECONDS: u64 = 120;

fn main() {
    println!(
        "10 Mbit/s, 50 ms one way, queue 48 ms, {SEEDS} seeds of {SECONDS} s. Packets lost to each cause, % classified as link / congestion / outage\n"
    );
    println!(
        "| link | link rate known | lost to link | to congestion | to outages | right % (worst seed) |"
    );
    println!("|---|---|---|---|---|---|");
    for channel in &CHANNELS {
        for alone in [false, true] {
            let tables: Vec<_> = (0..SEEDS)
                .map(|seed| confusion(channel, SECONDS, alone, seed))
                .collect();
            let worst = tables.iter().map(Confusion::overall).fold(1.0, f64::min);
            let mut all = Confusion::default();
            for (i, row) in all.0.iter_mut().enumerate() {
                for (j, cell) in row.iter_mut().enumerate() {
                    *cell = tables.iter().map(|table| table.0[i][j]).sum();
                }
            }
            println!(
                "| {} | {} | {} | {} | {} | {:.0} ({:.0}) |",
                channel.name,
                if alone { "yes" } else { "no" },
                row(all.0[0]),
                row(all.0[1]),
                row(all.0[2]),
                100.0 * all.overall(),
                100.0 * worst
            );
        }
    }
}

fn row(row: [u64; 3]) -> String {
    let all: u64 = row.iter().sum();
    if all == 0 {
        return "-".to_owned();
    }
    let percent = row.map(|n| format!("{:.0}", 100.0 * n as f64 / all as f64));
    format!("{} of {all}", percent.join(" / "))
}
