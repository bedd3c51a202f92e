//! Measured rate over emulated links, in virtual time: `cargo run --release -p tunnel --example
//! rates`.
//!
//! An argument selects a table (alone, steps, cubic, stated, untrue, company); `trace` prints a
//! run.

#[path = "../tests/emulated/mod.rs"]
mod emulated;

use std::time::Duration;

use emulated::{Run, Setup};
use tunnel::session::Rate;

const SEEDS: u64 = 3;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |table: &str| arguments.is_empty() || arguments.iter().any(|a| a == table);
    if arguments.first().is_some_and(|first| first == "trace") {
        return trace(&arguments[1..]);
    }
    if wanted("alone") {
        alone();
    }
    if wanted("steps") {
        steps();
    }
    if wanted("cubic") {
        cubic();
    }
    if wanted("stated") {
        stated();
    }
    if wanted("untrue") {
        untrue();
    }
    if wanted("company") {
        company();
    }
}

/// Formats median, minimum and maximum.
fn spread(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let (first, last) = (values[0], values[values.len() - 1]);
    format!("{:.2} ({first:.2} to {last:.2})", values[values.len() / 2])
}

fn over_seeds(setup: &Setup, measure: impl Fn(&Run) -> f64) -> String {
    spread(
        (0..SEEDS)
            .map(|seed| measure(&Run::new(setup, seed)))
            .collect(),
    )
}

fn setup(rate: f64, rtt_ms: u64, buffer: f64, loss: f64) -> Setup {
    Setup {
        rates: vec![(0.0, rate)],
        rtt: Duration::from_millis(rtt_ms),
        buffer,
        options: format!(",loss={loss}%"),
        cubic: vec![],
        start: vec![0.0],
        rate: Rate::Auto,
        rounds: 80.0,
    }
}

fn alone() {
    println!("\n## Alone; median (min to max) of {SEEDS} seeds\n");
    println!(
        "| Mbit/s | RTT ms | buffer BDP | loss % | RTTs to 0.85 | use of rate x (1 - loss) | queue p50 RTT | p95 | dropped at the queue % |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (rate, rtt) in [
        (10.0, 20),
        (10.0, 100),
        (10.0, 600),
        (100.0, 20),
        (100.0, 100),
        (2.0, 100),
        (0.5, 528),
    ] {
        for (buffer, loss) in [(0.25, 0.0), (1.0, 0.0), (4.0, 0.0), (1.0, 2.0), (1.0, 5.0)] {
            let setup = setup(rate * 1e6, rtt, buffer, loss);
            let runs: Vec<_> = (0..SEEDS).map(|seed| Run::new(&setup, seed)).collect();
            let all = |measure: &dyn Fn(&Run) -> f64| spread(runs.iter().map(measure).collect());
            let good = rate * 1e6 * (1.0 - loss / 100.0);
            println!(
                "| {rate} | {rtt} | {buffer} | {loss} | {} | {} | {} | {} | {} |",
                all(&|run| run.reaches(0.0, 0.85 * good)),
                all(&|run| run.rate(0, 12.0, 80.0) / good),
                all(&|run| run.queue(12.0, 80.0).0),
                all(&|run| run.queue(12.0, 80.0).1),
                all(&|run| 100.0 * run.overflow(0.0, 80.0)),
            );
        }
    }
}

fn steps() {
    println!("\n## Steps 10 to 2 to 8 Mbit/s at 60 and 120 RTT, buffer 1 BDP of 10 Mbit/s\n");
    println!(
        "| RTT ms | loss % | RTTs until the queue is under 0.5 RTT | use of 2 | queue p95 from 15 RTT after | RTTs to 0.85 of 8 | use of 8 |"
    );
    println!("|---|---|---|---|---|---|---|");
    for rtt in [20, 100, 600] {
        for loss in [0.0, 2.0] {
            let setup = Setup {
                rates: vec![(0.0, 1e7), (60.0, 2e6), (120.0, 8e6)],
                rounds: 180.0,
                ..setup(1e7, rtt, 1.0, loss)
            };
            let good = 1.0 - loss / 100.0;
            println!(
                "| {rtt} | {loss} | {} | {} | {} | {} | {} |",
                over_seeds(&setup, falls),
                over_seeds(&setup, |run| run.rate(0, 70.0, 120.0) / 2e6 / good),
                over_seeds(&setup, |run| run.queue(75.0, 120.0).1),
                over_seeds(&setup, |run| run.reaches(120.0, 0.85 * 8e6 * good)),
                over_seeds(&setup, |run| run.rate(0, 140.0, 180.0) / 8e6 / good),
            );
        }
    }
}

/// Prints results for a correctly stated rate.
fn stated() {
    println!("\n## Correctly stated rate; median (min to max) of {SEEDS} seeds\n");
    println!("| Mbit/s | RTT ms | loss | use of rate x (1 - loss) | queue p95 RTT |");
    println!("|---|---|---|---|---|");
    for rate in [0.5, 2.0, 10.0, 50.0] {
        for rtt in [20, 100, 600] {
            for loss in ["0%", "2%", "8%"] {
                let mut setup = setup(rate * 1e6, rtt, 1.0, 0.0);
                setup.options = format!(",loss={loss}");
                setup.rate = Rate::Stated((rate * 1e6) as u64);
                setup.rounds = 200.0;
                let good = rate * 1e6 * (1.0 - loss[..1].parse::<f64>().expect("digit") / 100.0);
                println!(
                    "| {rate} | {rtt} | {loss} | {} | {} |",
                    over_seeds(&setup, |run| run.rate(0, 1.0, 200.0) / good),
                    over_seeds(&setup, |run| run.queue(3.0, 200.0).1),
                );
            }
        }
    }
}

/// Prints results for a stated rate above the link's, temporarily or always.
fn untrue() {
    println!("\n## 10, 6 and 5.1 stated on 5 Mbit/s; 10 stated on steps of 10, 3 and 10\n");
    println!(
        "| stated | RTT ms | loss % | buffer BDP | use of rate x (1 - loss) | p95 of the queue, ms | dropped by the queue after 3 RTT % | RTTs to 0.93 of the stated rate |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (stated_rate, rates) in [
        (10.0, vec![(0.0, 5e6)]),
        (6.0, vec![(0.0, 5e6)]),
        (5.1, vec![(0.0, 5e6)]),
        (10.0, vec![(0.0, 1e7), (100.0, 3e6), (200.0, 1e7)]),
    ] {
        for rtt in [40, 300, 600] {
            for (loss, buffer) in [(0.0, 1.0), (2.0, 1.0), (0.0, 4.0), (0.0, 0.5)] {
                let steps = rates.len() > 1;
                let (rates, rate) = (rates.clone(), Rate::Stated((stated_rate * 1e6) as u64));
                let setup = Setup {
                    rates,
                    rate,
                    rounds: 300.0,
                    ..setup(5e6, rtt, buffer, loss)
                };
                let (from, to) = if steps { (103.0, 200.0) } else { (3.0, 300.0) };
                let good = setup.rate_at(from) * (1.0 - loss / 100.0);
                let ms = |rounds: f64| rounds * rtt as f64;
                let up = |run: &Run| run.reaches(200.0, 0.93 * 1e7 * (1.0 - loss / 100.0));
                println!(
                    "| {stated_rate}{} | {rtt} | {loss} | {buffer} | {} | {} | {} | {} |",
                    if steps { ", steps" } else { "" },
                    over_seeds(&setup, |run| run.rate(0, from, to) / good),
                    over_seeds(&setup, |run| ms(run.queue(from + 3.0, to).1)),
                    over_seeds(&setup, |run| 100.0 * run.overflow(from, to)),
                    if steps {
                        over_seeds(&setup, up)
                    } else {
                        String::new()
                    },
                );
            }
        }
    }
}

/// Prints shares beside other flows, with stated and measured rates.
fn company() {
    println!(
        "\n## 10 Mbit/s shared with other flows; fraction of a fair share, from 60 RTT and 30 s on\n"
    );
    println!("| flow | competing | RTT ms | buffer BDP | share | second | all |");
    println!("|---|---|---|---|---|---|---|");
    for (name, rate) in [("stated", Rate::Stated(10_000_000)), ("auto", Rate::Auto)] {
        for (beside, ours, others) in [("1 CUBIC", 1, 1), ("3 CUBIC", 1, 3), ("ours", 2, 0)] {
            for rtt in [40, 100, 300, 600] {
                for buffer in [0.5, 1.0, 4.0] {
                    let from = 60_f64.max(30e3 / rtt as f64);
                    let to = from + 600_f64.max(120e3 / rtt as f64);
                    let setup = Setup {
                        cubic: vec![(20.0, 1e6); others],
                        start: vec![0.0, 20.0][..ours].to_vec(),
                        rate,
                        rounds: to,
                        ..setup(1e7, rtt, buffer, 0.0)
                    };
                    let all = (ours + others) as f64;
                    println!(
                        "| {name} | {beside} | {rtt} | {buffer} | {} | {} | {} |",
                        over_seeds(&setup, |run| all * run.rate(0, from, to) / 1e7),
                        over_seeds(&setup, |run| all * run.rate(1, from, to) / 1e7),
                        over_seeds(&setup, |run| (0..ours + others)
                            .map(|flow| run.rate(flow, from, to) / 1e7)
                            .sum()),
                    );
                }
            }
        }
    }
}

/// Returns the round trips after the step until the queue is short for two round trips.
fn falls(run: &Run) -> f64 {
    let short = |quarter: &u32| {
        let from = 60.0 + f64::from(*quarter) / 4.0;
        run.queue(from, from + 2.0).1 < 0.5
    };
    (4..232)
        .find(short)
        .map_or(f64::INFINITY, |quarter| f64::from(quarter) / 4.0)
}

fn cubic() {
    println!("\n## Beside one CUBIC flow, 10 Mbit/s; shares of the link\n");
    println!(
        "| RTT ms | buffer BDP | pepd, begun 30 RTT before | CUBIC | pepd, begun 60 RTT after | CUBIC | pepd after CUBIC's end |"
    );
    println!("|---|---|---|---|---|---|---|");
    for rtt in [20, 100, 600] {
        for buffer in [0.25, 1.0, 4.0] {
            let first = Setup {
                cubic: vec![(30.0, 330.0)],
                rounds: 430.0,
                ..setup(1e7, rtt, buffer, 0.0)
            };
            let second = Setup {
                cubic: vec![(0.0, 360.0)],
                start: vec![60.0],
                rounds: 360.0,
                ..first.clone()
            };
            println!(
                "| {rtt} | {buffer} | {} | {} | {} | {} | {} |",
                over_seeds(&first, |run| run.rate(0, 60.0, 330.0) / 1e7),
                over_seeds(&first, |run| run.rate(1, 60.0, 330.0) / 1e7),
                over_seeds(&second, |run| run.rate(0, 90.0, 360.0) / 1e7),
                over_seeds(&second, |run| run.rate(1, 90.0, 360.0) / 1e7),
                over_seeds(&first, |run| run.rate(0, 400.0, 430.0) / 1e7),
            );
        }
    }
}

/// `trace MBIT RTT BUFFER LOSS SEED [cubic | three | after | step | two | - [STATED]]`: prints the
/// state at each report.
fn trace(arguments: &[String]) {
    let number = |i: usize| arguments[i].parse::<f64>().expect("a number");
    let mut setup = setup(number(0) * 1e6, number(1) as u64, number(2), number(3));
    if let Some(stated_rate) = arguments.get(6) {
        setup.rate = Rate::Stated((stated_rate.parse::<f64>().expect("a number") * 1e6) as u64);
    }
    match arguments.get(5).map(String::as_str) {
        Some("cubic") => {
            setup.cubic = vec![(30.0, 330.0)];
            setup.rounds = 360.0;
        }
        Some("three") => {
            (setup.cubic, setup.rounds) = (vec![(20.0, 1e6); 3], 500.0);
        }
        Some("two") => {
            (setup.start, setup.rounds) = (vec![0.0, 20.0], 400.0);
        }
        Some("after") => {
            setup.cubic = vec![(0.0, 360.0)];
            (setup.start, setup.rounds) = (vec![60.0], 360.0);
        }
        Some("step") => {
            setup.rates = vec![(0.0, 1e7), (60.0, 2e6), (120.0, 8e6)];
            setup.rounds = 180.0;
        }
        _ => {}
    }
    let run = Run::new(&setup, number(4) as u64);
    let rtt = setup.rtt.as_secs_f64();
    for (at, line) in &run.log {
        println!("{:8.2} {line}", at / rtt);
    }
}
