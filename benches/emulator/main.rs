//! Accuracy and speed of an emulated link between real namespaces, beside this machine without one.
//!
//! Needs root. Sender and receiver are in this process; the kernel stamps packets on arrival. The
//! machine must be quiet: compare with a second run.

mod floor;
mod probe;
mod speed;
mod timing;

use std::{process::ExitCode, time::Duration};

use benches::{Needs, run};

/// Row of the table.
#[derive(Debug)]
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
    quick: bool,
}

/// Length of a bulk transfer.
const TRANSFER_TIME: Duration = Duration::from_secs(1);

impl Effort {
    /// Returns `count`, or a quarter of it in a quick run.
    fn count(self, count: u32) -> u32 {
        if self.quick { count / 4 } else { count }
    }

    /// Returns the number of rounds of bulk transfers.
    fn rounds(self) -> usize {
        if self.quick { 1 } else { 3 }
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
    let names = MEASUREMENTS.map(|(name, _)| name);
    run("emulator", &names, Needs::Root, |run| {
        winkemu::netns::ensure_privileges()?;
        winkemu::netns::check_tun()?;
        let effort = Effort { quick: run.quick };
        let selected = MEASUREMENTS.iter().filter(|(name, _)| run.has(name));
        let outcomes: Vec<Outcome> = selected.flat_map(|(_, measure)| measure(effort)).collect();
        print(&outcomes);
        Ok(outcomes.iter().all(|outcome| outcome.met))
    })
}

fn print(outcomes: &[Outcome]) {
    println!(
        "The columns of mahimahi and rattan are older figures (docs/benchmarks/winkemu.md).\n"
    );
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
