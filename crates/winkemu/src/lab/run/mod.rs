//! Running a scenario: each run in a topology of its own, several at a time.

mod controls;
mod link_use;
mod measurement;
mod pool;
mod progress;
mod single;

use std::{
    cmp::Reverse,
    path::Path,
    sync::Mutex,
    time::{Duration, Instant, SystemTime},
};

use bpf_cc::LoadError;
use tempfile::TempDir;

pub use link_use::{LinkUse, QueuePoint, QueueUse};
pub use measurement::Measurement;
pub use progress::Progress;
pub use single::{Outcome, RunResult};

use controls::Controls;

use super::{
    report::{Circumstances, Results},
    scenario::{RunSpec, Scenario},
};

/// What to run of a scenario, and how.
#[derive(Debug, Clone, Default)]
pub struct RunOptions {
    /// Topologies at once; the scenario's number if absent.
    pub jobs: Option<usize>,
    /// Only runs whose description contains all these words.
    pub only: Vec<String>,
    /// Only the first seed.
    pub once: bool,
}

/// Why a scenario was not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The filter fits no run.
    #[error("no run of the scenario contains `{0}`; see them all with --list")]
    NothingToRun(String),
    /// The directory for the programs' files.
    #[error("cannot make a temporary directory: {0}")]
    Directory(#[source] std::io::Error),
    /// This system does not allow, or cannot run, the scenario's `controls`.
    #[error("{0}")]
    Controls(#[from] LoadError),
}

/// What all runs of a scenario have in common.
struct Bench<'a> {
    scenario: &'a Scenario,
    /// Its file: others are sought beside it.
    file: &'a Path,
    /// Where programs put theirs.
    scratch: &'a Path,
    controls: &'a Controls,
}

/// The runs that the options leave.
///
/// # Errors
/// [`RunError::NothingToRun`].
pub fn select(scenario: &Scenario, options: &RunOptions) -> Result<Vec<RunSpec>, RunError> {
    let mut runs = scenario.runs();
    runs.retain(|run| {
        let words = scenario.describe(run);
        let wanted = options
            .only
            .iter()
            .all(|word| words.contains(word.as_str()));
        wanted && (!options.once || run.seed == scenario.seeds[0])
    });
    if runs.is_empty() {
        return Err(RunError::NothingToRun(options.only.join("` and `")));
    }
    Ok(runs)
}

/// Runs a scenario and gathers the results, in the order of [`Scenario::runs`].
///
/// # Errors
/// [`RunError`]; a run that fails is a result.
pub fn run(
    scenario: &Scenario,
    file: &Path,
    options: &RunOptions,
    progress: &Progress,
) -> Result<Results, RunError> {
    let specs = select(scenario, options)?;
    let jobs = options
        .jobs
        .unwrap_or(scenario.parallel)
        .clamp(1, specs.len());
    let directory = scratch_directory().map_err(RunError::Directory)?;
    let controls = Controls::load(&scenario.controls)?;
    let bench = Bench {
        scenario,
        file,
        scratch: directory.path(),
        controls: &controls,
    };
    progress.begin(scenario, specs.len(), jobs);
    let started = (SystemTime::now(), Instant::now());
    // Lists in a matrix tend to end with what takes longest: begin there, or it ends alone.
    let mut order: Vec<_> = (0..specs.len()).collect();
    order.sort_by_key(|&index| Reverse(&specs[index].point));
    let one = |place: usize| {
        let index = order[place];
        let result = pool::attempt(&bench, &specs[index], progress);
        progress.finish(scenario, &specs[index], &result);
        (index, result)
    };
    let mut runs = pool::map(specs.len(), jobs, one);
    runs.sort_by_key(|(index, _)| *index);
    let runs = runs.into_iter().map(|(_, result)| result).collect();
    progress.end();
    let circumstances = Circumstances {
        file,
        jobs,
        started: started.0,
        took: started.1.elapsed(),
        controls: controls.names(),
    };
    Ok(Results::new(scenario, &circumstances, specs, runs))
}

/// Directories of runs that are going on, for [`remove_scratch`].
static SCRATCH: Mutex<Vec<std::path::PathBuf>> = Mutex::new(Vec::new());

fn scratch_directory() -> std::io::Result<TempDir> {
    let directory = tempfile::Builder::new().prefix("winkemu-lab-").tempdir()?;
    SCRATCH
        .lock()
        .expect("no holder of this lock panics")
        .push(directory.path().to_owned());
    Ok(directory)
}

/// Removes the files of all runs: for signal handlers that end this process.
pub fn remove_scratch() {
    for path in SCRATCH
        .lock()
        .expect("no holder of this lock panics")
        .drain(..)
    {
        // What cannot be removed is left: the process is ending.
        let _ = std::fs::remove_dir_all(path);
    }
}

/// How long pepd may take to drain after its flows have ended or were reset.
const GRACE: Duration = Duration::from_secs(10);
