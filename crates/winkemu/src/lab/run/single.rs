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
        program::{Keys, Nginx, Pepd, PepdReport, ProgramError},
        scenario::{Ground, PepdSpec, Program, RunSpec, Scenario, Start, Workload, pepds},
        topology::{LinkEdge, Topology, TopologyError},
    },
    link::{LinkConfig, OptionError},
    shell::{AccuracyLimit, LinkReport},
};

/// Result of a run.
#[derive(Debug, Serialize)]
pub struct RunResult {
    /// Outcome of the run.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Number of the attempt, from 1; earlier ones ran on a machine that was too busy.
    pub attempt: u32,
    /// Duration from start to end, set-up included.
    pub took_s: f64,
    /// Share of the run during which a task on this machine waited for a CPU, 0 to 1
    /// (`/proc/pressure/cpu`). Absent if the kernel does not report it.
    pub cpu_pressure: Option<f64>,
    /// Measurements by workload; empty if the run failed.
    pub measurements: Vec<Measurement>,
    /// Reports of the links, by name.
    pub links: BTreeMap<String, LinkReport>,
    /// Configuration and report of each pepd, by node.
    pub pepds: BTreeMap<String, PepdRun>,
}

/// Part of a pepd in a run.
#[derive(Debug, Serialize)]
pub struct PepdRun {
    /// Configuration.
    pub config: String,
    /// Counters and exit code; absent if pepd did not get that far.
    #[serde(flatten)]
    pub report: Option<PepdReport>,
}

/// Outcome of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// The run counts.
    Good,
    /// The machine was too busy for exact link timing.
    Late {
        /// Reason in words.
        reason: String,
    },
    /// A program or the set-up failed.
    Failed {
        /// Reason in words.
        reason: String,
    },
}

/// Failure of a run.
#[derive(Debug, thiserror::Error)]
enum RunFailure {
    #[error(transparent)]
    Topology(#[from] TopologyError),
    #[error("{workload}: {source}")]
    Workload {
        workload: String,
        source: ProgramError,
    },
    #[error(
        "set-up not finished at the `link_time` of {0:?}: keys, programs and sessions take longer"
    )]
    NotReady(Duration),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Netns(#[from] crate::netns::NetnsError),
    #[error(transparent)]
    Link(#[from] OptionError),
    #[error("cannot create a directory: {0}")]
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
        pepds: BTreeMap::new(),
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
    let specs = configure(scenario, spec, &links, &lab, directory.path())?;
    let pepds = start_pepds(&specs, &lab, directory.path(), result);
    let measured = match &pepds {
        Ok(_) => work(bench, spec, &lab, &links, directory.path()),
        Err(_) => Ok(Vec::new()),
    };
    // Also after a failure, because the reports of pepd and the links may explain it. pepd comes
    // first: its flows end over the links.
    let stopped = pepds.and_then(|pepds| stop_pepds(pepds, result));
    result.links = lab.stop_links().into_iter().collect();
    stopped?;
    result.measurements = measured?;
    look_at_links(result, scenario, spec, &links);
    result.outcome = judge(result);
    Ok(())
}

/// Adds to each workload the state of its links.
fn look_at_links(
    result: &mut RunResult,
    scenario: &Scenario,
    spec: &RunSpec,
    links: &[(String, LinkConfig)],
) {
    let workloads = &scenario.groups[spec.group].workloads;
    let alone = workloads.len() == 1;
    for workload in workloads {
        let of = |measured: &&mut Measurement| measured.workload == workload.name;
        let measured = result.measurements.iter_mut().find(of);
        if let Some((measured, window)) = measured.and_then(|of| of.window.map(|at| (of, at))) {
            let links = LinkUse::measure(workload, &window, scenario, links, &result.links);
            if let Some(links) = links {
                measured.look_at_links(links, alone);
            }
        }
    }
}

/// Configurations of all links in this run, by name.
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

/// Path of a trace file, relative to the scenario's directory.
fn beside(scenario: &Path, path: &Path) -> PathBuf {
    scenario.parent().unwrap_or(Path::new("")).join(path)
}

fn build(
    bench: &Bench<'_>,
    spec: &RunSpec,
    links: &[(String, LinkConfig)],
) -> Result<Topology, RunFailure> {
    let scenario = bench.scenario;
    let mut builder = Topology::builder().mtu(scenario.mtu);
    if !scenario.offloads {
        builder = builder.without_offloads();
    }
    for joint in scenario.network.edges() {
        let (a, b) = (&joint.a, &joint.b);
        let config = |name: &String| links.iter().find(|(link, _)| link == name);
        builder = match joint.link.as_ref().and_then(config) {
            Some((name, config)) => builder.link(a, b, edge(scenario, spec, name, config)),
            None => builder.veth(a, b),
        };
    }
    for node in scenario.network.nodes() {
        for (key, value) in scenario.node_settings(spec, node).sysctls {
            builder = builder.sysctl(node, &key, &value);
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

/// Specifications of the pepds of this run, with keys if there are several.
fn configure(
    scenario: &Scenario,
    spec: &RunSpec,
    links: &[(String, LinkConfig)],
    lab: &Topology,
    directory: &Path,
) -> Result<Vec<PepdSpec>, ProgramError> {
    let keys = Keys::make(directory, &scenario.variant(spec).pepds.peers())?;
    let ground = Ground {
        links,
        address: &|node, neighbour| lab.node(node).interface(neighbour).ipv4.addr().into(),
        key: &|node| {
            let file = keys.private(node).display().to_string();
            (file, keys.public(node).to_owned())
        },
        shared_key: &keys.shared(),
    };
    Ok(pepds(scenario, spec, &ground))
}

/// Starts the pepds in this order, and waits for the sessions of those that call others.
fn start_pepds(
    specs: &[PepdSpec],
    lab: &Topology,
    directory: &Path,
    result: &mut RunResult,
) -> Result<Vec<(String, Pepd)>, RunFailure> {
    let mut pepds = Vec::new();
    for PepdSpec { node, config, .. } in specs {
        let own = directory.join(format!("pepd-{node}"));
        fs::create_dir_all(&own)?;
        let run = PepdRun {
            config: config.clone(),
            report: None,
        };
        result.pepds.insert(node.clone(), run);
        pepds.push((node.clone(), Pepd::start(lab.node(node), config, &own)?));
    }
    for (spec, (_, pepd)) in specs.iter().zip(&pepds) {
        for peer in &spec.calls {
            pepd.wait_for_peer(peer)?;
        }
    }
    Ok(pepds)
}

/// Stops all pepds, and adds their reports.
fn stop_pepds(pepds: Vec<(String, Pepd)>, result: &mut RunResult) -> Result<(), RunFailure> {
    let mut outcome = Ok(());
    // Callers stop first: their flows end at the other pepds.
    for (node, pepd) in pepds.into_iter().rev() {
        match pepd.stop(GRACE) {
            Ok(report) => {
                if let Some(run) = result.pepds.get_mut(&node) {
                    run.report = Some(report);
                }
            }
            Err(err) => outcome = outcome.and(Err(err.into())),
        }
    }
    outcome
}

/// Runs the workloads of the group in parallel.
fn work(
    bench: &Bench<'_>,
    spec: &RunSpec,
    lab: &Topology,
    links: &[(String, LinkConfig)],
    directory: &Path,
) -> Result<Vec<Measurement>, RunFailure> {
    let workloads = &bench.scenario.groups[spec.group].workloads;
    let servers = start_servers(workloads, lab, directory)?;
    let stage = Stage {
        bench,
        spec,
        lab,
        links,
        servers: &servers,
        directory,
    };
    let run = &|slot: usize, workload: &Workload| {
        wait_for(workload.start, lab)?;
        stage
            .measure(slot, workload)
            .map_err(|source| RunFailure::Workload {
                workload: workload.name.clone(),
                source,
            })
    };
    let measured: Result<Vec<_>, _> = thread::scope(|scope| {
        let start = |(slot, workload)| scope.spawn(move || run(slot, workload));
        let threads: Vec<_> = workloads.iter().enumerate().map(start).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        // Join all threads before the first error is returned.
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

/// Waits until a workload starts.
fn wait_for(start: Start, lab: &Topology) -> Result<(), RunFailure> {
    match start {
        Start::Ready(after) => thread::sleep(after),
        Start::LinkTime(at) => {
            let began = lab.links_began().unwrap_or_else(Instant::now);
            let left = at.checked_sub(began.elapsed());
            thread::sleep(left.ok_or(RunFailure::NotReady(at))?);
        }
    }
    Ok(())
}

/// Starts one nginx on each node that curl connects to.
fn start_servers(
    workloads: &[Workload],
    lab: &Topology,
    directory: &Path,
) -> Result<BTreeMap<String, Nginx>, RunFailure> {
    let mut servers = BTreeMap::new();
    for workload in workloads {
        let wanted = matches!(workload.program, Program::Curl(_) | Program::Page(_));
        if wanted && !servers.contains_key(&workload.server) {
            let own = directory.join(format!("nginx-{}", workload.server));
            fs::create_dir_all(&own)?;
            let nginx = Nginx::start(lab.node(&workload.server), &own, workloads.len())?;
            servers.insert(workload.server.clone(), nginx);
        }
    }
    Ok(servers)
}

fn judge(result: &RunResult) -> Outcome {
    for (name, report) in &result.links {
        if let Some(failure) = &report.failure {
            return Outcome::Failed {
                reason: format!("link `{name}` ended early: {failure}"),
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

/// Total time since boot during which a task waited for a CPU.
fn cpu_waits() -> Option<Duration> {
    let text = fs::read_to_string("/proc/pressure/cpu").ok()?;
    let some = text.lines().find(|line| line.starts_with("some"))?;
    let total = some.split("total=").nth(1)?.trim().parse().ok()?;
    Some(Duration::from_micros(total))
}
