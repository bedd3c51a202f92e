//! Sessions over random schedules: no byte is lost, duplicated or reordered, and everything ends as
//! it should.
//!
//! `TUNNEL_SEED=n` runs that one alone, simplifies it if it fails, and with `TUNNEL_TRACE=1` prints
//! every packet; `TUNNEL_RUNS=n` sets the number of runs. A failing schedule leaves the traces of
//! both ends as qlog.

use std::{env, fs, ops::Range, path::Path};

use tunnel_sim::{
    Plan, Side, World,
    endpoint::Sealed,
    explore::{explore, simplify},
    plan::Scope,
    session::Plain,
};

/// Number of runs per test.
const RUNS: u64 = 10_000;

fn number(name: &str) -> Option<u64> {
    env::var(name)
        .ok()
        .map(|text| text.parse().expect("a number"))
}

fn check<S: Side>(scope: &Scope, seeds: Range<u64>) {
    if let Some(seed) = number("TUNNEL_SEED") {
        return replay::<S>(scope, seed);
    }
    let seeds = number("TUNNEL_RUNS").map_or(seeds, |runs| 0..runs);
    let expected = seeds.end - seeds.start;
    match explore::<S>(seeds, scope) {
        Ok(totals) => {
            println!("{totals:?}");
            assert_eq!(totals.runs, expected);
            assert!(!scope.packets || totals.messages > expected);
        }
        Err(failure) => {
            let traces = write_traces::<S>(&failure.plan);
            panic!("{failure}\n{traces}")
        }
    }
}

/// Runs a plan again, and writes the traces of both ends to files. Returns their paths.
fn write_traces<S: Side>(plan: &Plan) -> String {
    let (_, ends) = World::<S>::run_recorded(plan.clone());
    let files = ends.iter().enumerate().map(|(end, trace)| {
        let name = format!("tunnel-seed-{}-end-{end}.sqlog", plan.seed);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        match fs::write(&path, trace) {
            Ok(()) => format!("qlog of end {end}: {}", path.display()),
            Err(error) => format!("no qlog of end {end}: {}: {error}", path.display()),
        }
    });
    files.collect::<Vec<_>>().join("\n")
}

fn replay<S: Side>(scope: &Scope, seed: u64) {
    let trace = env::var_os("TUNNEL_TRACE").is_some();
    let Err(failure) = World::<S>::run(Plan::draw(seed, scope), trace) else {
        return;
    };
    println!("{failure}\n{}", write_traces::<S>(&failure.plan));
    let simple = simplify::<S>(failure, if trace { 0 } else { 500 });
    panic!("simplified: {simple}");
}

#[test]
fn sessions_keep_their_promises() {
    check::<Plain>(&Scope::SESSION, 0..RUNS);
}

#[test]
fn sessions_keep_their_promises_without_a_configured_rate() {
    check::<Plain>(&Scope::UNKNOWN_RATE, 0..RUNS / 2);
}

#[test]
fn sessions_keep_their_promises_with_packets_beside_streams() {
    check::<Plain>(&Scope::PACKETS, 0..RUNS / 4);
}

#[test]
fn endpoints_keep_their_promises_with_packets_beside_streams() {
    check::<Sealed>(&Scope::ENDPOINT_PACKETS, 0..RUNS / 10);
}

#[test]
fn endpoints_keep_their_promises() {
    check::<Sealed>(&Scope::ENDPOINT, 0..RUNS / 5);
}
