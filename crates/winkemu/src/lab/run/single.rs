//! One run, from an empty namespace to its measurements.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;

use super::{
    Bench, GRACE,
    link_use::LinkUse,
    measurement::{Measurement, Stage, divide},
};
use crate::{
    lab::{
        program::{Nginx, Pepd, PepdReport, ProgramError},
        scenario::{Program, RunSpec, Scenario, Workload, pepd_config},
        topology::{LinkEdge, Node, Topology, TopologyError},
    },
    link::{LinkConfig, OptionError},
    shell::{AccuracyLimit, LinkReport},
};

/// The result of a run.
#[derive(Debug, Serialize)]
pub struct RunResult {
    /// How it went.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Which attempt this was, from 1; those before were made on a machine that was too busy.
    pub attempt: u32,
    /// From the beginning to the end, set-up included.
    pub took_s: f64,
    /// Share of the run during which somebody on this machine waited for a processor, 0 to 1
    /// (`/proc/pressure/cpu`); absent where the kernel does not tell.
    pub cpu_pressure: Option<f64>,
    /// What was measured, by workload. Empty when the run failed.
    pub measurements: Vec<Measurement>,
    /// What the links did, by name.
    pub links: BTreeMap<String, LinkReport>,
    /// What pepd was told and how it fared.
    pub pepd: Option<PepdRun>,
}

/// Pepd's part of a run.
#[derive(Debug, Serialize)]
pub struct PepdRun {
    /// Its configuration.
    pub config: String,
    /// Its counters and exit; absent when it did not get that far.
    #[serde(flatten)]
    pub report: Option<PepdReport>,
}

/// Whether a run counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// It does.
    Good,
    /// The machine was too busy for the links to keep their times.
    Late {
        /// In words.
        reason: String,
    },
    /// A program or the set-up failed.
    Failed {
        /// In words.
        reason: String,
    },
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
enum RunFailure {
    #[error(transparent)]
    Topology(#[from] TopologyError),
    #[error("{workload}: {source}")]
    Workload {
        workload: String,
        source: ProgramError,
    },
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Netns(#[from] crate::netns::NetnsError),
    #[error(transparent)]
    Link(#[from] OptionError),
    #[error("cannot make a directory: {0}")]
    Directory(#[from] io::Error),
}

pub(super) fn run(bench: &Bench<'_>, spec: &RunSpec, attempt: u32) -> RunResult {
    let start = Instant::now();
    let waits = cpu_waits();
    let mut result = RunResult {
        outcome: Outcome::Good,
        attempt,
        took_s: 0.0,
        cpu_pressure: None,
        measurements: Vec::new(),
        links: BTreeMap::new(),
        pepd: None,
    };
    if let Err(failure) = fill(&mut result, bench, spec) {
        result.outcome = Outcome::Failed {
            reason: failure.to_string(),
        };
    }
    result.took_s = start.elapsed().as_secs_f64();
    let waited = cpu_waits()
        .zip(waits)
        .map(|(after, before)| after.saturating_sub(before));
    result.cpu_pressure = waited.map(|waited| waited.as_secs_f64() / result.took_s);
    result
}

fn fill(result: &mut RunResult, bench: &Bench<'_>, spec: &RunSpec) -> Result<(), RunFailure> {
    let scenario = bench.scenario;
    let directory = tempfile::tempdir_in(bench.scratch)?;
    let links = configs(scenario, bench.file, spec)?;
    let mut lab = build(bench, spec, &links)?;
    let config = pepd_config(scenario, spec, &links);
    let node = lab.find(&scenario.groups[spec.group].pepd_on);
    let pepd = node.zip(config);
    let pepd = pepd.map(|(node, config)| start_pepd(node, config, directory.path(), result));
    let pepd = pepd.transpose()?;
    let measured = work(bench, spec, &lab, directory.path());
    // Also after a failure: what pepd and the links say may explain it. Pepd first, as its flows
    // end over the links.
    let stopped = pepd.map(|pepd| pepd.stop(GRACE)).transpose();
    result.links = lab.stop_links().into_iter().collect();
    if let Some(run) = &mut result.pepd {
        run.report = stopped?;
    }
    result.measurements = measured?;
    look_at_links(result, scenario, spec, &links);
    result.outcome = judge(result);
    Ok(())
}

/// Tells each workload what its links were like.
fn look_at_links(
    result: &mut RunResult,
    scenario: &Scenario,
    spec: &RunSpec,
    links: &[(String, LinkConfig)],
) {
    for workload in &scenario.groups[spec.group].workloads {
        let of = |measured: &&mut Measurement| measured.workload == workload.name;
        let measured = result.measurements.iter_mut().find(of);
        if let Some((measured, window)) = measured.and_then(|of| of.window.map(|at| (of, at))) {
            let path = &scenario.path;
            measured.link_use = LinkUse::of(workload, &window, path, links, &result.links);
        }
    }
}

/// The configurations of all links in this run, by name.
fn configs(
    scenario: &Scenario,
    file: &Path,
    spec: &RunSpec,
) -> Result<Vec<(String, LinkConfig)>, OptionError> {
    let config = |(name, _): &(String, _)| {
        let options = scenario.link_options(spec, name);
        let load = &mut |path: &Path| fs::read_to_string(beside(file, path));
        Ok((name.clone(), options.resolve(load)?))
    };
    scenario.links.iter().map(config).collect()
}

/// Trace files stand beside the scenario.
fn beside(scenario: &Path, path: &Path) -> PathBuf {
    scenario.parent().unwrap_or(Path::new("")).join(path)
}

fn build(
    bench: &Bench<'_>,
    spec: &RunSpec,
    links: &[(String, LinkConfig)],
) -> Result<Topology, RunFailure> {
    let scenario = bench.scenario;
    let mut builder = Topology::builder();
    if !scenario.offloads {
        builder = builder.without_offloads();
    }
    for pair in scenario.path.windows(2) {
        let (a, b) = (&pair[0].node, &pair[1].node);
        let config = |name: &String| links.iter().find(|(link, _)| link == name);
        builder = match pair[1].link.as_ref().and_then(config) {
            Some((name, config)) => builder.link(a, b, edge(scenario, spec, name, config)),
            None => builder.veth(a, b),
        };
    }
    for hop in &scenario.path {
        for (key, value) in scenario.node_settings(spec, &hop.node).sysctls {
            builder = builder.sysctl(&hop.node, &key, &value);
        }
    }
    let lab = builder.build()?;
    for node in lab.nodes() {
        if let Some(congestion) = scenario.node_settings(spec, node.name()).congestion {
            node.set_congestion(bench.controls.actual(&congestion))?;
        }
    }
    Ok(lab)
}

fn edge(scenario: &Scenario, spec: &RunSpec, name: &str, config: &LinkConfig) -> LinkEdge {
    let limit = AccuracyLimit {
        late_after: scenario.late,
        ..AccuracyLimit::default()
    };
    let edge = LinkEdge::new(name, config.clone());
    LinkEdge {
        seed: spec.seed,
        limit,
        ..edge
    }
}

fn start_pepd(
    node: &Node,
    config: String,
    directory: &Path,
    result: &mut RunResult,
) -> Result<Pepd, ProgramError> {
    let pepd = Pepd::start(node, &config, directory);
    result.pepd = Some(PepdRun {
        config,
        report: None,
    });
    pepd
}

/// Runs the workloads of the group side by side.
fn work(
    bench: &Bench<'_>,
    spec: &RunSpec,
    lab: &Topology,
    directory: &Path,
) -> Result<Vec<Measurement>, RunFailure> {
    let workloads = &bench.scenario.groups[spec.group].workloads;
    let servers = start_servers(workloads, lab, directory)?;
    let stage = Stage {
        bench,
        spec,
        lab,
        servers: &servers,
        directory,
    };
    let run = &|workload: &Workload| {
        thread::sleep(workload.start);
        stage
            .measure(workload)
            .map_err(|source| RunFailure::Workload {
                workload: workload.name.clone(),
                source,
            })
    };
    let measured: Result<Vec<_>, _> = thread::scope(|scope| {
        let start = |workload| scope.spawn(move || run(workload));
        let threads: Vec<_> = workloads.iter().map(start).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        // All are joined before the first error goes up.
        threads
            .into_iter()
            .map(join)
            .collect::<Vec<_>>()
            .into_iter()
            .collect()
    });
    let mut measured = measured?;
    divide(workloads, &mut measured);
    Ok(measured)
}

/// One nginx on each node that curl connects to.
fn start_servers(
    workloads: &[Workload],
    lab: &Topology,
    directory: &Path,
) -> Result<BTreeMap<String, Nginx>, RunFailure> {
    let mut servers = BTreeMap::new();
    for workload in workloads {
        let wanted = matches!(workload.program, Program::Curl(_));
        if wanted && !servers.contains_key(&workload.server) {
            let own = directory.join(format!("nginx-{}", workload.server));
            fs::create_dir_all(&own)?;
            let nginx = Nginx::start(lab.node(&workload.server), &own)?;
            servers.insert(workload.server.clone(), nginx);
        }
    }
    Ok(servers)
}

fn judge(result: &RunResult) -> Outcome {
    for (name, report) in &result.links {
        if let Some(failure) = &report.failure {
            return Outcome::Failed {
                reason: format!("the link `{name}` ended early: {failure}"),
            };
        }
        if !report.accuracy.counts {
            let reason = report.accuracy.reason.clone().unwrap_or_default();
            return Outcome::Late {
                reason: format!("link `{name}`: {reason}"),
            };
        }
    }
    Outcome::Good
}

/// For how long, since boot, at least one task had to wait for a processor.
fn cpu_waits() -> Option<Duration> {
    let text = fs::read_to_string("/proc/pressure/cpu").ok()?;
    let some = text.lines().find(|line| line.starts_with("some"))?;
    let total = some.split("total=").nth(1)?.trim().parse().ok()?;
    Some(Duration::from_micros(total))
}
