//! Common parts of the benches that `cargo bench` runs: options, permissions, conditions of a run.
//!
//! Each bench has a subject and named measurements. `cargo bench -- relay` runs those of the bench
//! `relay`, `cargo bench -- relay/one-flow` one of them.
#![forbid(unsafe_code)]

use std::{process::ExitCode, time::Duration, time::Instant};

use clap::{Parser, ValueEnum};
use pepd_tests::{
    pep_binary,
    speed::{Machine, Measure, Plan, Result, Variant},
};

/// Repetitions of a measurement in a full run, and in a quick one.
const ROUNDS: [usize; 2] = [5, 3];
/// Length of a bulk transfer in a full run, and in a quick one.
const TRANSFER_TIME: [Duration; 2] = [Duration::from_millis(700), Duration::from_millis(200)];

/// Options that all benches take.
#[derive(Debug, Parser)]
#[command(about = "Measures pepd, winkemu and fec beside a direct path or a peer")]
pub struct Options {
    /// Run only measurements whose name (SUBJECT/MEASUREMENT) contains one of these texts
    pub filters: Vec<String>,
    /// Measure for a fraction of the time; the figures vary more
    #[arg(long)]
    pub quick: bool,
    /// End with status 1 if a target is missed
    #[arg(long)]
    pub strict: bool,
    /// Passed by cargo bench
    #[arg(long, hide = true)]
    bench: bool,
}

/// Permission that a bench needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// None.
    Nothing,
    /// Root, for network namespaces and pepd.
    Root,
}

/// Selected measurements of a bench.
#[derive(Debug)]
pub struct Run {
    /// Names of the measurements, in the order of the bench.
    pub names: Vec<String>,
    /// True to measure for a fraction of the time.
    pub quick: bool,
}

impl Run {
    /// Returns whether a measurement is selected.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.names.iter().any(|selected| selected == name)
    }
}

/// Runs the measurements of a subject that the command line selects. `measure` prints its tables,
/// and returns whether all targets are met.
///
/// Does nothing if no measurement is selected. `cargo test --benches` runs nothing either.
pub fn run(
    subject: &str,
    names: &[&str],
    needs: Needs,
    measure: impl FnOnce(&Run) -> Result<bool>,
) -> ExitCode {
    let options = Options::parse();
    let run = Run {
        names: select(subject, names, &options.filters),
        quick: options.quick,
    };
    if !options.bench || run.names.is_empty() {
        return ExitCode::SUCCESS;
    }
    if needs == Needs::Root && !nix::unistd::geteuid().is_root() {
        eprintln!(
            "{subject}: needs root, for network namespaces; without root: `cargo bench -- codes`"
        );
        return ExitCode::from(2);
    }
    match timed(subject, || measure(&run)) {
        Ok(all_met) if all_met || !options.strict => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(err) => {
            eprintln!("{subject}: {err}");
            ExitCode::from(2)
        }
    }
}

/// Prints the conditions before and the time after the measurements.
fn timed(subject: &str, measure: impl FnOnce() -> Result<bool>) -> Result<bool> {
    let machine = Machine::look()?;
    println!("\n## {subject}\n\n{machine}\n");
    if let Some(warning) = machine.warning() {
        eprintln!("{warning}");
    }
    let began = Instant::now();
    let result = measure()?;
    println!("{subject}: {:.0} s", began.elapsed().as_secs_f64());
    Ok(result)
}

fn select(subject: &str, names: &[&str], filters: &[String]) -> Vec<String> {
    let is_selected = |name: &&&str| {
        let full = format!("{subject}/{name}");
        filters.is_empty() || filters.iter().any(|text| full.contains(text))
    };
    let selected = names.iter().filter(is_selected);
    selected.map(|name| (*name).to_owned()).collect()
}

/// Measurements of [`streams`].
pub const STREAMS: [&str; 3] = ["one-flow", "many-flows", "connect-echo"];

/// Measures connections through pepd beside the direct path, in turns, and prints a table.
///
/// # Errors
/// When pepd cannot be built or started, or a connection fails.
pub fn streams(run: &Run, treatment: Variant) -> Result<bool> {
    let measures = run.names.iter();
    let measures = measures.map(|name| Measure::from_str(name, false));
    let plan = Plan {
        measures: measures.collect::<std::result::Result<_, _>>()?,
        variants: vec![Variant::Direct, treatment],
        rounds: ROUNDS[usize::from(run.quick)],
        transfer_time: TRANSFER_TIME[usize::from(run.quick)],
        pepd_program: pep_binary::pepd().to_owned(),
    };
    let report = plan.run(|what| eprintln!("{what}"))?;
    println!(
        "Median (minimum..maximum) of {} rounds; one row per direction.\n",
        plan.rounds
    );
    println!("{report}");
    Ok(report.meets_its_targets())
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn texts_select_measurements_by_subject_and_name() {
        let select = |filters: &[&str]| {
            let filters: Vec<_> = filters.iter().map(|text| (*text).to_owned()).collect();
            select("relay", &STREAMS, &filters)
        };
        assert_eq!(select(&[]), STREAMS);
        assert_eq!(select(&["relay"]), STREAMS);
        assert_eq!(select(&["tunnel"]), [""; 0]);
        assert_eq!(select(&["relay/one"]), ["one-flow"]);
        assert_eq!(select(&["tunnel", "flow"]), ["one-flow", "many-flows"]);
    }

    /// Targets of other packages run by name only: `cargo bench` builds and runs nothing else.
    #[test]
    fn other_packages_bench_nothing_by_default() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let crates = fs::read_dir(root.join("crates")).expect("readable");
        let crates = crates.map(|entry| entry.expect("readable").path());
        let mut found = 0;
        for package in crates.chain([root.join("tests")]) {
            let manifest = fs::read_to_string(package.join("Cargo.toml")).expect("a package");
            let manifest: toml::Table = manifest.parse().expect("TOML");
            let is_off = |target: &toml::Value| target.get("bench") == Some(&false.into());
            let of = |kind: &str| manifest.get(kind).and_then(toml::Value::as_array);
            let named = ["bin", "bench"].into_iter().filter_map(of).flatten();
            let targets: Vec<_> = named.chain(manifest.get("lib")).collect();
            let programs = of("bin").map_or(0, Vec::len);
            let source = package.join("src");
            let discovered = ["main.rs", "bin"].map(|name| source.join(name));
            assert!(
                manifest.contains_key("lib")
                    && targets.iter().all(|target| is_off(target))
                    && discovered.iter().filter(|path| path.exists()).count() == programs,
                "{}: lib, bins and benches need `bench = false`",
                package.display()
            );
            found += 1;
        }
        assert!(found > 15, "{found} packages");
    }

    #[test]
    fn the_measurements_of_streams_exist() {
        for name in STREAMS {
            assert!(Measure::from_str(name, false).is_ok(), "{name}");
        }
    }
}
