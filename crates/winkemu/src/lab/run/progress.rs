//! How far a scenario is: a bar on a terminal, lines elsewhere.

use std::{
    fmt::Write as _,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::single::{Outcome, RunResult};
use crate::lab::{
    report::format_value,
    scenario::{Metric, RunSpec, Scenario},
};

/// Tells how far a scenario is, on standard error.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    /// A line for each run, where there is no terminal to draw a bar on.
    lines: bool,
    done: AtomicUsize,
}

impl Progress {
    /// A bar if standard error is a terminal, else lines.
    pub fn on_stderr() -> Self {
        use std::io::IsTerminal as _;
        let terminal = std::io::stderr().is_terminal();
        let target = if terminal {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        Self {
            bar: ProgressBar::with_draw_target(None, target),
            lines: !terminal,
            done: AtomicUsize::new(0),
        }
    }

    /// Says nothing.
    pub fn silent() -> Self {
        Self {
            bar: ProgressBar::hidden(),
            lines: false,
            done: AtomicUsize::new(0),
        }
    }

    pub(super) fn begin(&self, scenario: &Scenario, runs: usize, jobs: usize) {
        self.bar.set_length(runs as u64);
        let template = "{elapsed_precise} [{bar:30}] {pos}/{len} runs, {eta} left  {msg}";
        let style = ProgressStyle::with_template(template).expect("a valid template");
        self.bar.set_style(style.progress_chars("=> "));
        self.bar.enable_steady_tick(Duration::from_millis(500));
        self.say(&format!(
            "{}: {runs} runs, {jobs} at a time",
            scenario.title
        ));
    }

    pub(super) fn finish(&self, scenario: &Scenario, spec: &RunSpec, result: &RunResult) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        let mut text = scenario.describe(spec);
        match &result.outcome {
            Outcome::Good => describe_measurements(&mut text, scenario, result),
            Outcome::Late { reason } => text += &format!(": EXCLUDED, machine too busy ({reason})"),
            Outcome::Failed { reason } => text += &format!(": FAILED ({reason})"),
        }
        self.bar.inc(1);
        if self.lines {
            let of = self.bar.length().unwrap_or(0);
            eprintln!("[{done}/{of}] {text} ({:.0} s)", result.took_s);
        } else if result.outcome == Outcome::Good {
            self.bar.set_message(text);
        } else {
            self.bar.println(text);
        }
    }

    pub(super) fn retry(&self, scenario: &Scenario, spec: &RunSpec, reason: &str) {
        let what = scenario.describe(spec);
        self.say(&format!("{what}: machine too busy, once more ({reason})"));
    }

    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }

    fn say(&self, text: &str) {
        if self.lines {
            eprintln!("{text}");
        } else {
            self.bar.println(text);
        }
    }
}

fn describe_measurements(text: &mut String, scenario: &Scenario, result: &RunResult) {
    for measurement in &result.measurements {
        let values = Metric::ALL
            .iter()
            .filter(|(_, metric)| scenario.metrics.contains(metric));
        for (_, metric) in values {
            if let Some(value) = measurement.value(*metric) {
                let value = format_value(*metric, value);
                write!(text, ": {value} {}", metric.unit()).expect("writing to a string");
            }
        }
    }
}
