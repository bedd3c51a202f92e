//! Execution of a scenario: each run in a topology of its own, several at a time.

mod controls;
mod link_use;
mod measurement;
mod pool;
mod progress;
mod single;

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::{Duration, Instant, SystemTime},
};

use bpf_cc::LoadError;
use parking_lot::Mutex;
use tempfile::TempDir;

pub use link_use::{LinkUse, QueuePoint, QueueUse};
pub use measurement::{Incomplete, Measurement};
pub use progress::Progress;
pub use single::{Outcome, RunResult};

use controls::Controls;

use super::{
    report::{Circumstances, Results},
    scenario::{RunSpec, Scenario},
};

/// Selection of runs, and their parallelism.
#[derive(Debug, Clone, Default)]
pub struct RunOptions {
    /// Topologies run at once; by default the scenario's number.
    pub jobs: Option<usize>,
    /// Texts that the descriptions of runs must contain.
    pub only: Vec<String>,
    /// True to run only the first seed.
    pub once: bool,
}

/// Failure to run a scenario.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Filter that matches no run.
    #[error("no run of the scenario contains `{0}`; list all runs with --list")]
    NothingToRun(String),
    /// Directory for the programs' files that cannot be created.
    #[error("cannot create a temporary directory: {0}")]
    Directory(#[source] std::io::Error),
    /// Scenario's `controls` that this system does not permit or cannot run.
    #[error("{0}")]
    Controls(#[from] LoadError),
}

/// Data shared by all runs of a scenario.
struct Bench<'a> {
    scenario: &'a Scenario,
    /// Scenario file; relative paths start at its directory.
    file: &'a Path,
    /// Directory for the files of programs.
    scratch: &'a Path,
    controls: &'a Controls,
    progress: &'a Progress,
}

/// Selects the runs that match the options.
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

/// Running scenario with the results so far.
#[derive(Debug)]
pub struct Campaign {
    scenario: Scenario,
    file: PathBuf,
    specs: Vec<RunSpec>,
    jobs: usize,
    started: (SystemTime, Instant),
    controls: Mutex<BTreeMap<String, String>>,
    /// Results with their indices in `specs`.
    done: Mutex<Vec<(usize, RunResult)>>,
    interrupted: AtomicBool,
}

impl Campaign {
    /// Selects the runs of a scenario that was read from `file`.
    ///
    /// # Errors
    /// [`RunError::NothingToRun`].
    pub fn new(scenario: &Scenario, file: &Path, options: &RunOptions) -> Result<Self, RunError> {
        let specs = select(scenario, options)?;
        let jobs = options.jobs.unwrap_or(scenario.parallel);
        Ok(Self {
            jobs: jobs.clamp(1, specs.len()),
            scenario: scenario.clone(),
            file: file.to_owned(),
            specs,
            started: (SystemTime::now(), Instant::now()),
            controls: Mutex::default(),
            done: Mutex::default(),
            interrupted: AtomicBool::new(false),
        })
    }

    /// Runs the scenario and collects the results, in the order of [`Scenario::runs`].
    ///
    /// # Errors
    /// [`RunError`]; a failed run is a result.
    pub fn run(&self, progress: &Progress) -> Result<Results, RunError> {
        let directory = scratch_directory().map_err(RunError::Directory)?;
        let controls = Controls::load(&self.scenario.controls)?;
        *self.controls.lock() = controls.names();
        let bench = Bench {
            scenario: &self.scenario,
            file: &self.file,
            scratch: directory.path(),
            controls: &controls,
            progress,
        };
        progress.begin(&self.scenario, self.specs.len(), self.jobs);
        // The last values of a matrix tend to take longest. Start with them, so that none runs
        // alone at the end.
        let mut order: Vec<_> = (0..self.specs.len()).collect();
        order.sort_by_key(|&index| Reverse(&self.specs[index].point));
        let each = |place: usize| {
            let index = order[place];
            let result = pool::attempt(&bench, &self.specs[index]);
            let mut done = self.done.lock();
            // After the interrupt, programs are killed; such a run is no result.
            if self.interrupted.load(SeqCst) {
                return;
            }
            progress.finish(&self.scenario, &self.specs[index], &result);
            done.push((index, result));
        };
        progress.report_during(|| pool::each(order.len(), self.jobs, each));
        progress.end();
        Ok(self.results())
    }

    /// Stops collecting results; runs in progress are dropped.
    pub fn interrupt(&self) {
        let done = self.done.lock();
        self.interrupted.store(true, SeqCst);
        drop(done);
    }

    /// Takes the results so far. [`run`](Self::run) returns none after this call.
    pub fn results(&self) -> Results {
        let mut done = std::mem::take(&mut *self.done.lock());
        done.sort_by_key(|(index, _)| *index);
        let circumstances = Circumstances {
            file: &self.file,
            jobs: self.jobs,
            started: self.started.0,
            took: self.started.1.elapsed(),
            controls: self.controls.lock().clone(),
            planned: self.specs.len(),
        };
        let runs = done
            .into_iter()
            .map(|(index, result)| (self.specs[index].clone(), result));
        Results::new(&self.scenario, &circumstances, runs.collect())
    }
}

/// Directories of runs in progress, for [`remove_scratch`].
static SCRATCH: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn scratch_directory() -> std::io::Result<TempDir> {
    let directory = tempfile::Builder::new().prefix("winkemu-lab-").tempdir()?;
    SCRATCH.lock().push(directory.path().to_owned());
    Ok(directory)
}

/// Removes the files of all runs, for signal handlers that end this process.
pub fn remove_scratch() {
    for path in SCRATCH.lock().drain(..) {
        // Files that cannot be removed stay: the process is ending.
        let _ = std::fs::remove_dir_all(path);
    }
}

/// Time limit for pepd to drain after its flows have ended or were reset.
const GRACE: Duration = Duration::from_secs(10);
