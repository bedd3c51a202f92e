//! Progress of a scenario: a bar on a terminal, lines elsewhere.

use std::{fmt::Write as _, time::Duration};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;

use super::single::{Outcome, RunResult};
use crate::lab::{
    report::format_value,
    scenario::{Metric, RunSpec, Scenario},
};

/// Progress display on standard error.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    /// True to print a line per run, without a terminal for a bar.
    lines: bool,
    pace: Mutex<Pace>,
}

/// Pace of the runs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Pace {
    runs: usize,
    jobs: usize,
    done: usize,
    /// Total duration of all finished runs.
    took: Duration,
    /// Number of repeated attempts.
    again: usize,
}

impl Pace {
    fn finish(&mut self, took: Duration) {
        self.done += 1;
        self.took += took;
    }

    /// Estimated remaining time, if the remaining runs take as long as the finished ones: in rounds
    /// of as many as run at once.
    fn left(self, elapsed: Duration) -> Option<Duration> {
        let mean = self.took.checked_div(u32::try_from(self.done).ok()?)?;
        let rounds = (self.runs + self.again).div_ceil(self.jobs.max(1));
        let all = mean * u32::try_from(rounds).ok()?;
        Some(all.saturating_sub(elapsed))
    }
}

/// Formats a remaining time in whole minutes or seconds.
fn about(left: Duration) -> String {
    let seconds = left.as_secs_f64().round() as u64;
    match seconds {
        0..=99 => format!("about {seconds} s left"),
        _ => format!("about {} min left", (seconds + 30) / 60),
    }
}

impl Progress {
    /// Creates a bar if standard error is a terminal, otherwise lines.
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
            pace: Mutex::default(),
        }
    }

    /// Creates a display without output.
    pub fn silent() -> Self {
        Self {
            bar: ProgressBar::hidden(),
            lines: false,
            pace: Mutex::default(),
        }
    }

    pub(super) fn begin(&self, scenario: &Scenario, runs: usize, jobs: usize) {
        *self.pace.lock() = Pace {
            runs,
            jobs,
            ..Pace::default()
        };
        self.bar.set_length(runs as u64);
        self.bar.reset_elapsed();
        let template = "{elapsed_precise} [{bar:30}] {pos}/{len} runs  {prefix}{msg}";
        let style = ProgressStyle::with_template(template).expect("a valid template");
        self.bar.set_style(style.progress_chars("=> "));
        self.bar.enable_steady_tick(Duration::from_millis(500));
        self.say(&format!(
            "{}: {runs} runs, {jobs} at a time",
            scenario.title
        ));
    }

    pub(super) fn finish(&self, scenario: &Scenario, spec: &RunSpec, result: &RunResult) {
        let pace = self.count(result);
        let mut text = scenario.describe(spec);
        match &result.outcome {
            Outcome::Good => describe_measurements(&mut text, scenario, result),
            Outcome::Late { reason } => text += &format!(": EXCLUDED, machine too busy ({reason})"),
            Outcome::Failed { reason } => text += &format!(": FAILED ({reason})"),
        }
        self.bar.inc(1);
        let left = pace
            .left(self.bar.elapsed())
            .filter(|_| pace.done < pace.runs);
        let left = left.filter(|left| !left.is_zero()).map(about);
        if self.lines {
            let left = left.map_or(String::new(), |left| format!("; {left}"));
            let (done, of, took) = (pace.done, pace.runs, result.took_s);
            eprintln!("[{done}/{of}] {text} ({took:.0} s{left})");
            return;
        }
        let left = left.map_or(String::new(), |left| format!("{left}  "));
        self.bar.set_prefix(left);
        if result.outcome == Outcome::Good {
            self.bar.set_message(text);
        } else {
            self.bar.println(text);
        }
    }

    fn count(&self, result: &RunResult) -> Pace {
        let mut pace = self.pace.lock();
        pace.finish(Duration::try_from_secs_f64(result.took_s).unwrap_or_default());
        *pace
    }

    pub(super) fn retry(&self, scenario: &Scenario, spec: &RunSpec, reason: &str) {
        let what = scenario.describe(spec);
        self.pace.lock().again += 1;
        self.say(&format!("{what}: machine too busy, repeating ({reason})"));
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
    let several = result.measurements.len() > 1;
    for measurement in &result.measurements {
        if several {
            write!(text, "; {}:", measurement.workload).expect("writing to a string");
        }
        let values = Metric::ALL
            .iter()
            .filter(|(_, metric)| scenario.metrics.contains(metric));
        for (_, metric) in values {
            if let Some(value) = measurement.value(*metric) {
                let (name, value) = (metric.name(), format_value(*metric, value));
                let separator = if text.ends_with(':') { "" } else { ";" };
                write!(text, "{separator} {name} {value} {}", metric.unit())
                    .expect("writing to a string");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_that_of_the_rounds_to_come() {
        let mut pace = Pace {
            runs: 162,
            jobs: 12,
            ..Pace::default()
        };
        let left = |pace: Pace, seconds| pace.left(Duration::from_secs(seconds));
        assert_eq!(left(pace, 59), None, "no estimate without a finished run");
        pace.finish(Duration::from_secs(60));
        // 162 runs, twelve at a time: 14 rounds, of which one is over.
        assert_eq!(left(pace, 60), Some(Duration::from_secs(13 * 60)));
        (0..100).for_each(|_| pace.finish(Duration::from_secs(60)));
        assert_eq!(left(pace, 540), Some(Duration::from_secs(5 * 60)));
        pace.again = 7;
        assert_eq!(
            left(pace, 540),
            Some(Duration::from_secs(6 * 60)),
            "one more round"
        );
        assert_eq!(left(pace, 9999), Some(Duration::ZERO));
    }

    #[test]
    fn remaining_time_is_rounded() {
        assert_eq!(about(Duration::from_millis(5_400)), "about 5 s left");
        assert_eq!(about(Duration::from_secs(840)), "about 14 min left");
    }
}
