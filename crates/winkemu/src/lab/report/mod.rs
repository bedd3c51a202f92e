//! What came out of a scenario: JSON, tables and plots.

mod bars;
mod checks;
mod figure;
mod metric;
mod series;
mod summary;
mod table;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use serde_json::{Value, json};

pub use checks::CheckResult;
pub use figure::FigureError;
pub use metric::format_value;
use metric::significant;
pub use summary::{Cell, Summary};

use super::{
    run::{Outcome, RunResult},
    scenario::{RunSpec, Scenario},
};

/// A finished scenario.
#[derive(Debug)]
pub struct Results {
    scenario: Scenario,
    header: Value,
    runs: Vec<(RunSpec, RunResult)>,
    /// Runs that there would have been.
    planned: usize,
    summary: Summary,
    checks: Vec<CheckResult>,
}

/// How a scenario was run.
#[derive(Debug)]
pub(super) struct Circumstances<'a> {
    /// Its file.
    pub file: &'a Path,
    /// Topologies at once.
    pub jobs: usize,
    /// When.
    pub started: SystemTime,
    /// How long it took.
    pub took: Duration,
    /// The eBPF congestion controls of ours, and the names under which they were registered.
    pub controls: BTreeMap<String, String>,
    /// Runs that were to be.
    pub planned: usize,
}

/// Why results could not be kept.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The file or directory cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A plot cannot be drawn.
    #[error(transparent)]
    Figure(#[from] FigureError),
}

impl Results {
    pub(super) fn new(
        scenario: &Scenario,
        circumstances: &Circumstances<'_>,
        runs: Vec<(RunSpec, RunResult)>,
    ) -> Self {
        let summary = Summary::new(scenario, &runs);
        // Of a part a check says nothing.
        let checks = if runs.len() == circumstances.planned {
            checks::evaluate(scenario, &summary, &runs)
        } else {
            Vec::new()
        };
        let header = json!({
            "scenario": scenario.name,
            "title": scenario.title,
            "file": circumstances.file.display().to_string(),
            "text": scenario.text,
            "winkemu": env!("CARGO_PKG_VERSION"),
            "kernel": kernel(),
            "cpus": std::thread::available_parallelism().map_or(1, usize::from),
            "parallel": circumstances.jobs,
            "controls": circumstances.controls,
            "started_unix_s": circumstances.started
                .duration_since(SystemTime::UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
            "took_s": circumstances.took.as_secs_f64(),
            "planned": circumstances.planned,
        });
        Self {
            scenario: scenario.clone(),
            header,
            runs,
            planned: circumstances.planned,
            summary,
            checks,
        }
    }

    /// Everything: configuration, seeds, versions, each run with its links and pepd, the summary.
    pub fn to_json(&self) -> Value {
        let run = |(spec, result): &(RunSpec, RunResult)| {
            let point: serde_json::Map<_, _> = self
                .scenario
                .settings(&spec.point)
                .map(|(key, value)| (key.to_owned(), value.value().into()))
                .collect();
            let mut object = json!({
                "variant": self.scenario.variant(spec).name,
                "group": self.scenario.groups[spec.group].name,
                "point": point,
                "seed": spec.seed,
            });
            let result = serde_json::to_value(result).expect("plain data becomes JSON");
            if let (Some(object), Value::Object(result)) = (object.as_object_mut(), result) {
                object.extend(result);
            }
            object
        };
        let mut all = self.header.clone();
        all["checks"] = serde_json::to_value(&self.checks).expect("plain data becomes JSON");
        all["summary"] = serde_json::to_value(&self.summary).expect("plain data becomes JSON");
        all["runs"] = self.runs.iter().map(run).collect();
        all
    }

    /// Writes [`to_json`](Self::to_json) to a file.
    ///
    /// # Errors
    /// [`ReportError::Write`].
    pub fn write_json(&self, path: &Path) -> Result<(), ReportError> {
        let text = serde_json::to_string_pretty(&self.to_json()).expect("a value becomes text");
        write(path, text.as_bytes())
    }

    /// Tables, one for each metric, then the checks and what went wrong.
    pub fn to_text(&self) -> String {
        let tables = self.scenario.metrics.iter();
        let tables =
            tables.filter_map(|metric| table::table(&self.scenario, &self.summary, *metric));
        let mut parts: Vec<_> = tables.collect();
        parts.extend(checks::text(&self.checks));
        parts.extend(self.complaints());
        parts.join("\n\n")
    }

    /// Draws all plots into a directory, each as SVG and PNG, and gives their paths.
    ///
    /// # Errors
    /// [`ReportError`].
    pub fn write_plots(&self, directory: &Path) -> Result<Vec<PathBuf>, ReportError> {
        let err = |source| ReportError::Write {
            path: directory.to_owned(),
            source,
        };
        fs::create_dir_all(directory).map_err(err)?;
        let mut figures = Vec::new();
        for metric in &self.scenario.metrics {
            figures.extend(bars::figure(&self.scenario, &self.summary, *metric)?);
        }
        figures.extend(series::figures(&self.scenario, &self.runs)?);
        let mut paths = Vec::new();
        for figure in figures {
            let stem = directory.join(format!("{}-{}", self.scenario.name, figure.name()));
            let (svg, png) = (stem.with_extension("svg"), stem.with_extension("png"));
            write(&svg, figure.svg().as_bytes())?;
            write(&png, &figure.to_png()?)?;
            paths.extend([svg, png]);
        }
        Ok(paths)
    }

    /// Runs that there are results of.
    pub fn finished(&self) -> usize {
        self.runs.len()
    }

    /// Runs that failed.
    pub fn failed(&self) -> usize {
        self.count(|outcome| matches!(outcome, Outcome::Failed { .. }))
    }

    /// Runs left out because the machine was too busy.
    pub fn late(&self) -> usize {
        self.count(|outcome| matches!(outcome, Outcome::Late { .. }))
    }

    /// Runs that count although some program waited for a processor most of the time.
    pub fn starved(&self) -> usize {
        let starved = |result: &RunResult| result.cpu_pressure > Some(CONTENTION);
        let runs = self.runs.iter().map(|(_, result)| result);
        runs.filter(|result| result.outcome == Outcome::Good && starved(result))
            .count()
    }

    /// Whether every check holds.
    pub fn checks_hold(&self) -> bool {
        self.checks.iter().all(|check| check.holds)
    }

    fn count(&self, wanted: impl Fn(&Outcome) -> bool) -> usize {
        self.runs
            .iter()
            .filter(|(_, result)| wanted(&result.outcome))
            .count()
    }

    /// What failed, and how many runs were left out.
    fn complaints(&self) -> Option<String> {
        let mut lines = Vec::new();
        if self.finished() < self.planned {
            lines.push(format!(
                "interrupted: {} of {} runs are finished; checks were not made",
                self.finished(),
                self.planned
            ));
        }
        for (spec, result) in &self.runs {
            if let Outcome::Failed { reason } = &result.outcome {
                lines.push(format!(
                    "failed: {}: {reason}",
                    self.scenario.describe(spec)
                ));
            }
        }
        if self.late() > 0 {
            lines.push(format!(
                "{} of {} runs are left out: the machine was too busy for their links to keep \
                 time; run fewer at once (--jobs)",
                self.late(),
                self.runs.len()
            ));
        }
        lines.extend(self.contention());
        (!lines.is_empty()).then(|| lines.join("\n"))
    }
}

impl Results {
    /// Says that programs starved: the links' lateness shows only that of links.
    fn contention(&self) -> Option<String> {
        let count = self.starved();
        (count > 0).then(|| {
            let share = CONTENTION * 100.0;
            let runs = self.runs.len();
            let checks = if self.checks_hold() {
                ""
            } else {
                "; a check that is broken here proves nothing"
            };
            format!(
                "note: in {count} of {runs} runs some program waited for a processor more than \
                 {share:.0} % of the time: the links kept time, but programs may have been slower \
                 than alone{checks}"
            )
        })
    }
}

/// Ten topologies of 10 Mbit/s on two idle cores stay below.
const CONTENTION: f64 = 0.6;

fn write(path: &Path, bytes: &[u8]) -> Result<(), ReportError> {
    if let Some(parent) = path.parent() {
        // If it cannot be made, writing the file says so.
        let _ = fs::create_dir_all(parent);
    }
    fs::write(path, bytes).map_err(|source| ReportError::Write {
        path: path.to_owned(),
        source,
    })
}

fn kernel() -> String {
    let name = nix::sys::utsname::uname();
    name.map_or(String::new(), |name| {
        format!(
            "{} {}",
            name.sysname().to_string_lossy(),
            name.release().to_string_lossy()
        )
    })
}

/// The last part of a matrix key, for axes: `link.loss` is `loss`.
fn short(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}

/// Names of all workloads, in order.
fn workloads(scenario: &Scenario) -> impl Iterator<Item = &str> {
    let workloads = scenario.groups.iter().flat_map(|group| &group.workloads);
    workloads.map(|workload| workload.name.as_str())
}

#[cfg(test)]
mod tests;
