//! Results of a scenario: JSON, tables and plots.

mod arrivals;
mod bars;
mod checks;
mod figure;
mod metric;
mod series;
mod summary;
mod table;
mod transfers;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use serde_json::{Value, json};
use units::counted;

pub use checks::CheckResult;
pub use figure::{Figure, FigureError};
pub use metric::format_value;
use metric::significant;
pub use summary::{Cell, Summary};

use transfers::Transfers;

use super::{
    run::{Outcome, RunResult},
    scenario::{Axis, Metric, RunSpec, Scenario, Setting, short},
};

/// Results of a finished or interrupted scenario.
#[derive(Debug)]
pub struct Results {
    scenario: Scenario,
    header: Value,
    runs: Vec<(RunSpec, RunResult)>,
    /// Number of planned runs.
    planned: usize,
    summary: Summary,
    checks: Vec<CheckResult>,
}

/// Circumstances of the runs.
#[derive(Debug)]
pub(super) struct Circumstances<'a> {
    /// Scenario file.
    pub file: &'a Path,
    /// Topologies run at once.
    pub jobs: usize,
    /// Start time.
    pub started: SystemTime,
    /// Total duration.
    pub took: Duration,
    /// pepd's eBPF congestion controls, and the names under which they were registered.
    pub controls: BTreeMap<String, String>,
    /// Number of planned runs.
    pub planned: usize,
}

/// Failure to write results.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// File or directory that cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// Plot that cannot be drawn.
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
        // Checks need all runs.
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
            "source": scenario.source,
            "metrics": metrics(scenario),
            "matrix": matrix(scenario),
            "references": scenario.references,
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

    /// Complete results: configuration, seeds, versions, each run with its links and pepds, and the
    /// summary.
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
        all["checks"] = self.checks.iter().map(CheckResult::to_json).collect();
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

    /// Formats one table per metric, then the checks and the failures.
    pub fn to_text(&self) -> String {
        let tables = self.scenario.metrics.iter();
        let tables =
            tables.filter_map(|metric| table::table(&self.scenario, &self.summary, *metric));
        let mut parts: Vec<_> = tables.collect();
        let incomplete = self.incomplete();
        if incomplete > 0 {
            parts.push(format!(
                "{} incomplete at the time limit: goodput is that of the part that had arrived, \
                 and tables give no time",
                counted(incomplete, "transfer")
            ));
        }
        parts.extend(checks::text(&self.checks));
        parts.extend(self.complaints());
        parts.join("\n\n")
    }

    /// Formats one table of the times of transfers, a sentence per variant, broken checks and
    /// failures.
    pub fn to_brief_text(&self) -> String {
        let transfers = Transfers::new(&self.scenario, &self.summary, &self.runs);
        let mut parts: Vec<_> = transfers.table().into_iter().collect();
        parts.extend(transfers.sentences());
        let missing = self.failed() + self.late() > 0;
        parts.extend(checks::brief_text(&self.checks, missing));
        let complaints = self.complaints().unwrap_or_default();
        let complaints = complaints.lines();
        parts.extend(complaints.map(|line| transfers::wrapped(line, transfers::WIDTH)));
        parts.join("\n")
    }

    /// Draws all plots into a directory, each as SVG and PNG, and returns their paths.
    ///
    /// # Errors
    /// [`ReportError`].
    pub fn write_plots(&self, directory: &Path) -> Result<Vec<PathBuf>, ReportError> {
        let mut figures = Vec::new();
        for metric in &self.scenario.metrics {
            figures.extend(bars::figure(&self.scenario, &self.summary, *metric)?);
        }
        figures.extend(series::figures(&self.scenario, &self.runs)?);
        self.write_figures(directory, &figures)
    }

    /// Draws what has arrived over time, or without such values the times of transfers, as SVG and
    /// PNG, and returns the paths.
    ///
    /// # Errors
    /// [`ReportError`].
    pub fn write_brief_plot(&self, directory: &Path) -> Result<Vec<PathBuf>, ReportError> {
        let figure = match arrivals::figure(&self.scenario, &self.runs)? {
            Some(figure) => Some(figure),
            None => bars::figure(&self.scenario, &self.summary, Metric::Seconds)?,
        };
        self.write_figures(directory, figure.as_slice())
    }

    fn write_figures(
        &self,
        directory: &Path,
        figures: &[Figure],
    ) -> Result<Vec<PathBuf>, ReportError> {
        let err = |source| ReportError::Write {
            path: directory.to_owned(),
            source,
        };
        fs::create_dir_all(directory).map_err(err)?;
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

    /// Number of runs with results.
    pub fn finished(&self) -> usize {
        self.runs.len()
    }

    /// Number of failed runs.
    pub fn failed(&self) -> usize {
        self.count(|outcome| matches!(outcome, Outcome::Failed { .. }))
    }

    /// Number of runs left out because the machine was too busy.
    pub fn late(&self) -> usize {
        self.count(|outcome| matches!(outcome, Outcome::Late { .. }))
    }

    /// Number of runs that count although programs waited for a CPU most of the time.
    pub fn starved(&self) -> usize {
        let starved = |result: &RunResult| result.cpu_pressure > Some(CONTENTION);
        let runs = self.runs.iter().map(|(_, result)| result);
        runs.filter(|result| result.outcome == Outcome::Good && starved(result))
            .count()
    }

    /// Number of transfers that the time limit ended, in runs that count.
    fn incomplete(&self) -> u64 {
        let good = self
            .runs
            .iter()
            .filter(|(_, result)| result.outcome == Outcome::Good);
        let measured = good.flat_map(|(_, result)| &result.measurements);
        measured.filter(|of| of.incomplete.is_some()).count() as u64
    }

    /// Reports whether every check holds.
    pub fn checks_hold(&self) -> bool {
        self.checks.iter().all(|check| check.holds)
    }

    fn count(&self, wanted: impl Fn(&Outcome) -> bool) -> usize {
        self.runs
            .iter()
            .filter(|(_, result)| wanted(&result.outcome))
            .count()
    }

    /// Lists failed runs and the number of runs left out.
    fn complaints(&self) -> Option<String> {
        let mut lines = Vec::new();
        if self.finished() < self.planned {
            lines.push(format!(
                "interrupted: {} of {} runs finished; checks skipped",
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
                "{} of {} runs left out: machine too busy for exact link timing; run fewer at once \
                 (--jobs)",
                self.late(),
                self.runs.len()
            ));
        }
        lines.extend(self.contention());
        (!lines.is_empty()).then(|| lines.join("\n"))
    }
}

impl Results {
    /// Warns about programs that waited for a CPU. The lateness of links does not show this.
    fn contention(&self) -> Option<String> {
        let count = self.starved();
        (count > 0).then(|| {
            let share = CONTENTION * 100.0;
            let runs = self.runs.len();
            let checks = if self.checks_hold() {
                ""
            } else {
                "; broken checks are inconclusive"
            };
            format!(
                "note: in {count} of {runs} runs a program waited for a CPU for more than \
                 {share:.0} % of the time: link timing was exact, but programs may have been \
                 slow{checks}"
            )
        })
    }
}

/// Threshold of CPU pressure. Ten topologies of 10 Mbit/s on two idle cores stay below it.
const CONTENTION: f64 = 0.6;

fn write(path: &Path, bytes: &[u8]) -> Result<(), ReportError> {
    if let Some(parent) = path.parent() {
        // If this fails, writing the file reports the error.
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

/// Metrics of the tables, with what formats their values.
fn metrics(scenario: &Scenario) -> Value {
    let metric = |metric: &Metric| {
        json!({
            "name": metric.name(),
            "label": metric.label(),
            "unit": metric.unit(),
            "scale": metric.scale(),
        })
    };
    scenario.metrics.iter().map(metric).collect()
}

/// Keys of the matrix, with their values.
fn matrix(scenario: &Scenario) -> Value {
    let axis = |axis: &Axis| {
        let values: Vec<_> = axis.values.iter().map(Setting::value).collect();
        json!({ "key": axis.key, "values": values })
    };
    scenario.matrix.iter().map(axis).collect()
}

/// Names of all workloads, in order.
fn workloads(scenario: &Scenario) -> impl Iterator<Item = &str> {
    let workloads = scenario.groups.iter().flat_map(|group| &group.workloads);
    workloads.map(|workload| workload.name.as_str())
}

#[cfg(test)]
mod brief_tests;
#[cfg(test)]
mod tests;
