//! Blocks and sliding windows at the same FEC overhead: residual loss, and the time to recover a
//! lost packet, in packets sent in the meantime.
//!
//! ```sh
//! cargo run --release -p fec --example codes [SEED [PACKETS]]
//! ```

mod link;

use fec::theory::Channel;
use link::{Code, Outcome, run};

const fn blocks(k: u8, h: u8) -> Code {
    Code::Block { k, h, depth: 1 }
}

const fn window(window: u8, k: u8, h: u8) -> Code {
    Code::Window { window, k, h }
}

const CODES: [&[Code]; 3] = [
    &[
        blocks(100, 7),
        window(20, 100, 7),
        window(50, 100, 7),
        window(128, 100, 7),
    ],
    &[
        blocks(20, 4),
        blocks(50, 10),
        blocks(100, 20),
        Code::Block {
            k: 20,
            h: 4,
            depth: 8,
        },
        window(20, 5, 1),
        window(50, 5, 1),
        window(128, 5, 1),
    ],
    &[blocks(1, 1), blocks(3, 3), window(3, 1, 1)],
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: usize| arguments.next().map_or(Ok(default), |text| text.parse());
    let (seed, packets) = (number(1)?, number(1_000_000)?);
    let channels = [
        ("2 %, independent", Channel::iid(0.02)?),
        ("5 %, independent", Channel::iid(0.05)?),
        ("2 %, bursts of 4", Channel::gilbert(0.02, 4.0)?),
        ("5.5 %, bursts of 6.7 (paul2006)", Channel::PAUL2006),
    ];
    println!("seed {seed}, {packets} data packets; delays in packets sent\n");
    println!(
        "| lost | code | overhead | residual loss | recovered: mean / p95 / p99 | all, in order: mean / p95 / p99 |"
    );
    println!("|---|---|---|---|---|---|");
    for (name, channel) in &channels {
        for code in CODES.iter().copied().flatten() {
            show(name, *code, &run(*code, channel, packets, seed as u64));
        }
    }
    Ok(())
}

fn show(channel: &str, code: Code, outcome: &Outcome) {
    let delays =
        |delays: &link::Delays| format!("{:.1} / {} / {}", delays.mean, delays.p95, delays.p99);
    println!(
        "| {channel} | {} | {:.1} % | {:.2e} of {:.2e} | {} | {} |",
        code.name(),
        100.0 * outcome.overhead,
        outcome.residual,
        outcome.lost,
        delays(&outcome.recovery),
        delays(&outcome.in_order),
    );
}
