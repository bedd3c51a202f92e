//! Accuracy and speed of a link between real namespaces.
//!
//! `cargo bench -p winkemu --bench shell [-- [--short] [--json FILE] [NAME...]]`, as root or with
//! user namespaces and access to /dev/net/tun. Sender and receiver are in this process; the kernel
//! stamps packets on arrival. The machine must be quiet: compare with a second run. Exits with 1
//! when a target is missed.

mod floor;
mod probe;
mod speed;
mod timing;

use std::{process::ExitCode, time::Duration};

use serde::Serialize;

/// Row of the table.
#[derive(Debug, Serialize)]
struct Outcome {
    name: String,
    measured: String,
    target: &'static str,
    met: bool,
    /// Result of the machine without a link in between.
    floor: String,
    mahimahi: &'static str,
    rattan: &'static str,
}

/// Length of the measurement.
#[derive(Debug, Clone, Copy)]
struct Effort {
    short: bool,
}

impl Effort {
    /// Returns `count`, or a fifth of it in a short run.
    fn count(self, count: u32) -> u32 {
        if self.short { count / 5 } else { count }
    }

    fn seconds(self) -> Duration {
        Duration::from_secs(if self.short { 1 } else { 5 })
    }
}

type Measurement = fn(Effort) -> Vec<Outcome>;

const MEASUREMENTS: [(&str, Measurement); 6] = [
    ("delay", timing::delay),
    ("delay-rt", timing::delay_realtime),
    ("rate", timing::rate),
    ("lone", timing::lone_packet),
    ("packets", speed::packets),
    ("tcp", speed::tcp),
];

fn main() -> ExitCode {
    // Cargo passes `--bench`. `cargo test --benches` does not, and must not run the full benchmark.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    if !has("--bench") {
        return ExitCode::SUCCESS;
    }
    if let Err(error) = winkemu::netns::ensure_privileges() {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    let effort = Effort {
        short: has("--short"),
    };
    let named = MEASUREMENTS.iter().any(|(name, _)| has(name));
    let wanted = MEASUREMENTS.iter().filter(|(name, _)| !named || has(name));
    let outcomes: Vec<Outcome> = wanted.flat_map(|(_, measure)| measure(effort)).collect();
    print(&outcomes);
    if let Some(path) = arguments.iter().skip_while(|a| *a != "--json").nth(1) {
        let text = serde_json::to_string_pretty(&outcomes).expect("plain data");
        std::fs::write(path, text).expect("the file can be written");
    }
    ExitCode::from(u8::from(outcomes.iter().any(|outcome| !outcome.met)))
}

fn print(outcomes: &[Outcome]) {
    println!("| | winkemu | target | | this machine without a link | mahimahi | rattan |");
    println!("|---|---|---|---|---|---|---|");
    for outcome in outcomes {
        let Outcome {
            name,
            measured,
            target,
            floor,
            mahimahi,
            rattan,
            ..
        } = outcome;
        let met = if outcome.met { "met" } else { "MISSED" };
        println!("| {name} | {measured} | {target} | {met} | {floor} | {mahimahi} | {rattan} |");
    }
}
