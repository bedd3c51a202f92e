//! `cargo bench -p pepd-tests --bench speed -- [MEASURE]... [--json FILE]`: compares pepd's speed
//! with the direct path, as tables, and checks targets. Needs root.

use std::{fs, path::PathBuf, process::ExitCode, time::Duration};

use clap::Parser;
use pepd_tests::{
    pep_binary,
    speed::{Machine, Measure, Plan, Report, Result, Variant},
};
use serde_json::json;

/// Measures pepd's speed and the direct path's, in turns.
#[derive(Debug, Parser)]
#[command(name = "speed")]
struct Options {
    /// Measurements to run; all by default
    #[arg(value_enum)]
    measures: Vec<Measure>,
    /// Repetitions, whose median is used
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Length of each bulk transfer, after an uncounted half second
    #[arg(long, default_value = "2s", value_parser = units::duration::parse)]
    transfer_time: Duration,
    /// Measure this variant only (direct, spoof, defer, tunnel, packets or packets-fec), without a
    /// comparison
    #[arg(long, value_parser = variant)]
    only: Option<Variant>,
    /// Compare pepd with and without custody only
    #[arg(long, conflicts_with = "only")]
    custody: bool,
    /// Write every value, the summaries and the targets to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// End with status 1 if a target is missed
    #[arg(long)]
    strict: bool,
    /// Passed by cargo bench
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(all_met) if all_met || !options.strict => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(err) => {
            eprintln!("speed: {err}");
            ExitCode::from(2)
        }
    }
}

fn run(options: &Options) -> Result<bool> {
    let pepd_program = pep_binary::pepd().to_owned();
    let machine = Machine::look()?;
    if let Some(warning) = machine.warning() {
        eprintln!("{warning}");
    }
    let report = plan(options, pepd_program).run(|what| eprintln!("{what}"))?;
    println!("{report}");
    if let Some(path) = &options.json {
        fs::write(path, format!("{:#}\n", json_of(&report, &machine)))?;
    }
    Ok(report.meets_its_targets())
}

fn plan(options: &Options, pepd_program: PathBuf) -> Plan {
    let all = <Measure as clap::ValueEnum>::value_variants();
    let measures = match options.measures.as_slice() {
        [] => all,
        chosen => chosen,
    };
    let variants = match options.only {
        Some(variant) => vec![variant],
        None if options.custody => vec![
            Variant::SpoofAlone,
            Variant::Spoof,
            Variant::TunnelAlone,
            Variant::Tunnel,
        ],
        None => vec![
            Variant::Direct,
            Variant::Spoof,
            Variant::Defer,
            Variant::Tunnel,
            Variant::Packets,
            Variant::PacketsFec,
        ],
    };
    Plan {
        measures: measures.to_vec(),
        variants,
        rounds: options.rounds.into(),
        transfer_time: options.transfer_time,
        pepd_program,
    }
}

fn json_of(report: &Report, machine: &Machine) -> serde_json::Value {
    let mut json = json!({ "machine": machine });
    let Some(fields) = json.as_object_mut() else {
        unreachable!("made as an object above");
    };
    if let serde_json::Value::Object(report) = report.json() {
        fields.extend(report);
    }
    json
}

fn variant(text: &str) -> std::result::Result<Variant, String> {
    match text {
        "direct" => Ok(Variant::Direct),
        "spoof" => Ok(Variant::Spoof),
        "defer" => Ok(Variant::Defer),
        "tunnel" => Ok(Variant::Tunnel),
        "packets" => Ok(Variant::Packets),
        "packets-fec" => Ok(Variant::PacketsFec),
        _ => Err("direct, spoof, defer, tunnel, packets or packets-fec".to_owned()),
    }
}
