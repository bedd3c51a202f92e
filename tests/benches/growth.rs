//! `cargo bench -p pepd-tests --bench growth`: compares the window growth of pepd's congestion
//! controls with their formulas, as a table. Needs root.
#![expect(clippy::print_stdout, reason = "tables are the output")]

use std::{fs, path::PathBuf, process::ExitCode, time::Duration};

use bpf_cc::{Control, Loaded};
use clap::Parser;
use pepd_tests::growth::{Figure, Result, formulas, stretch, table};

/// Measures the window growth of pepd's congestion controls.
#[derive(Debug, Parser)]
#[command(name = "growth")]
struct Options {
    /// Round-trip times at which Hybla's formulas are checked
    #[arg(long, num_args = 1.., default_values = ["100ms", "250ms", "600ms"], value_parser = units::duration::parse)]
    rtt: Vec<Duration>,
    /// Measure only the growth with stretched acknowledgements
    #[arg(long)]
    stretch: bool,
    /// Repetitions
    #[arg(long, default_value_t = 1)]
    rounds: u16,
    /// Write all figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Passed by cargo bench
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(figures) if figures.iter().all(Figure::is_met) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(err) => {
            eprintln!("growth: {err}");
            ExitCode::from(2)
        }
    }
}

fn run(options: &Options) -> Result<Vec<Figure>> {
    let loaded = Loaded::load(&[Control::Hybla, Control::HyblaSat])?;
    let name = |control| loaded.name_of(control).unwrap_or_default();
    let mut figures = Vec::new();
    for _ in 0..options.rounds {
        if !options.stretch {
            for &rtt in &options.rtt {
                figures.extend(formulas(name(Control::Hybla), rtt)?);
            }
        }
        figures.push(stretch(name(Control::Hybla), false)?);
        figures.push(stretch(name(Control::HyblaSat), true)?);
    }
    println!("{}", table(&figures));
    if let Some(path) = &options.json {
        fs::write(path, serde_json::to_vec_pretty(&figures)?)?;
    }
    Ok(figures)
}
