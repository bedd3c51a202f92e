//! Goodput of an upload over an emulated GEO link (`scenarios/bench.toml`): directly, split by one
//! pepd, and in a tunnel.

use std::{path::Path, process::ExitCode};

use benches::{Needs, Run, run};
use pepd_tests::{pep_binary, speed::Result};
use winkemu::{
    lab::{
        run::{Campaign, Progress, RunOptions},
        scenario::Scenario,
    },
    netns,
};

fn main() -> ExitCode {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios/bench.toml");
    let scenario = match Scenario::load(&file) {
        Ok(scenario) => scenario,
        Err(err) => {
            eprintln!("links: {err}");
            return ExitCode::from(2);
        }
    };
    let names: Vec<String> = scenario.variants.iter().map(|v| v.name.clone()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    run("links", &names, Needs::Root, |run| {
        measure(run, scenario.clone(), &file)
    })
}

fn measure(run: &Run, mut scenario: Scenario, file: &Path) -> Result<bool> {
    netns::check_tun()?;
    // The lab starts the pepd that this builds.
    pep_binary::pepd();
    scenario.variants.retain(|variant| run.has(&variant.name));
    let baseline = scenario.baseline.take();
    scenario.baseline = baseline.filter(|name| run.has(name));
    let options = RunOptions {
        once: run.quick,
        ..RunOptions::default()
    };
    let campaign = Campaign::new(&scenario, file, &options)?;
    let results = campaign.run(&Progress::on_stderr(false))?;
    println!("{}", results.to_text());
    match results.failed() {
        0 => Ok(results.checks_hold()),
        failed => Err(format!("{failed} runs failed").into()),
    }
}
