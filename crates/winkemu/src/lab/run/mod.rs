//! Running a scenario: each run in a topology of its own, several at a time.

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

/// A scenario that is being run, and the results that are there.
#[derive(Debug)]
pub struct Campaign {
    scenario: Scenario,
    file: PathBuf,
    specs: Vec<RunSpec>,
    jobs: usize,
    started: (SystemTime, Instant),
    controls: Mutex<BTreeMap<String, String>>,
    /// By their places in `specs`.
    done: Mutex<Vec<(usize, RunResult)>>,
    interrupted: AtomicBool,
}

impl Campaign {
    /// Selects the runs of a scenario, which was read from `file`.
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

    /// Runs it and gathers the results, in the order of [`Scenario::runs`].
    ///
    /// # Errors
    /// [`RunError`]; a run that fails is a result.
    pub fn run(&self, progress: &Progress) -> Result<Results, RunError> {
        let directory = scratch_directory().map_err(RunError::Directory)?;
        let controls = Controls::load(&self.scenario.controls)?;
        *self.controls.lock() = controls.names();
        let bench = Bench {
            scenario: &self.scenario,
            file: &self.file,
            scratch: directory.path(),
            controls: &controls,
        };
        progress.begin(&self.scenario, self.specs.len(), self.jobs);
        // Lists in a matrix tend to end with what takes longest: begin there, or it ends alone.
        let mut order: Vec<_> = (0..self.specs.len()).collect();
        order.sort_by_key(|&index| Reverse(&self.specs[index].point));
        pool::each(order.len(), self.jobs, |place| {
            let index = order[place];
            let result = pool::attempt(&bench, &self.specs[index], progress);
            let mut done = self.done.lock();
            // From then on programs are killed, which is no result.
            if self.interrupted.load(SeqCst) {
                return;
            }
            progress.finish(&self.scenario, &self.specs[index], &result);
            done.push((index, result));
        });
        progress.end();
        Ok(self.results())
    }

    /// Takes no more results: those of runs that go on are dropped.
    pub fn interrupt(&self) {
        let done = self.done.lock();
        self.interrupted.store(true, SeqCst);
        drop(done);
    }

    /// Takes what there is. [`run`](Self::run) has nothing to give then.
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

/// Directories of runs that are going on, for [`remove_scratch`].
static SCRATCH: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn scratch_directory() -> std::io::Result<TempDir> {
    let directory = tempfile::Builder::new().prefix("winkemu-lab-").tempdir()?;
    SCRATCH.lock().push(directory.path().to_owned());
    Ok(directory)
}

/// Removes the files of all runs: for signal handlers that end this process.
pub fn remove_scratch() {
    for path in SCRATCH.lock().drain(..) {
        // What cannot be removed is left: the process is ending.
        let _ = std::fs::remove_dir_all(path);
    }
}

/// How long pepd may take to drain after its flows have ended or were reset.
const GRACE: Duration = Duration::from_secs(10);
