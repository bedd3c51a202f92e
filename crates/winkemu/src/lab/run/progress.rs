//! Progress of a scenario on standard error: a line that is rewritten on a terminal, lines
//! elsewhere.

use std::{
    fmt::{self, Write as _},
    io::IsTerminal as _,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use parking_lot::Mutex;

use super::single::{Outcome, RunResult};
use crate::lab::{
    report::format_value,
    scenario::{Metric, RunSpec, Scenario},
};

/// Time between two lines of brief progress without a terminal.
const LINE_PERIOD: Duration = Duration::from_secs(15);

/// Progress display on standard error.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    output: Output,
    /// True for a state of all runs, without a line per run.
    brief: bool,
    state: Arc<State>,
}

/// Form of the display.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Output {
    None,
    Lines,
    Terminal,
}

/// State of the runs.
#[derive(Debug, Default)]
struct State {
    pace: Mutex<Pace>,
    transfers: Mutex<Vec<Weak<Transfer>>>,
}

/// Running transfer of a known size.
#[derive(Debug)]
pub(super) struct Transfer {
    size: u64,
    arrived: AtomicU64,
}

impl Transfer {
    /// Bytes that have arrived, which the transfer updates.
    pub fn bytes(&self) -> &AtomicU64 {
        &self.arrived
    }

    /// Share that has arrived, 0 to 1.
    fn share(&self) -> f64 {
        self.arrived.load(Relaxed) as f64 / self.size.max(1) as f64
    }
}

impl fmt::Display for State {
    /// State in words: `43 s: 8 of 12 runs done; of 4 transfers 19 to 24 % have arrived`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pace = *self.pace.lock();
        let elapsed = pace.began.map_or(0, |began| began.elapsed().as_secs());
        write!(f, "{elapsed:3} s: {} of {} runs done", pace.done, pace.runs)?;
        let mut transfers = self.transfers.lock();
        transfers.retain(|transfer| transfer.strong_count() > 0);
        let shares: Vec<_> = transfers
            .iter()
            .filter_map(Weak::upgrade)
            .map(|transfer| (transfer.share() * 100.0) as u64)
            .collect();
        match (shares.iter().min(), shares.iter().max()) {
            (Some(lowest), Some(highest)) if shares.len() > 1 => {
                let count = shares.len();
                write!(
                    f,
                    "; of {count} transfers {lowest} to {highest} % have arrived"
                )
            }
            (Some(share), _) => write!(f, "; of 1 transfer {share} % have arrived"),
            _ => Ok(()),
        }
    }
}

/// Pace of the runs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Pace {
    began: Option<Instant>,
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
    /// Creates a display on standard error; `brief` shows the state of all runs instead of each.
    pub fn on_stderr(brief: bool) -> Self {
        let output = if std::io::stderr().is_terminal() {
            Output::Terminal
        } else {
            Output::Lines
        };
        Self::new(output, brief)
    }

    /// Creates a display without output.
    pub fn silent() -> Self {
        Self::new(Output::None, false)
    }

    fn new(output: Output, brief: bool) -> Self {
        let target = match output {
            Output::Terminal => ProgressDrawTarget::stderr(),
            Output::None | Output::Lines => ProgressDrawTarget::hidden(),
        };
        Self {
            bar: ProgressBar::with_draw_target(None, target),
            output,
            brief,
            state: Arc::default(),
        }
    }

    pub(super) fn begin(&self, scenario: &Scenario, runs: usize, jobs: usize) {
        *self.state.pace.lock() = Pace {
            began: Some(Instant::now()),
            runs,
            jobs,
            ..Pace::default()
        };
        self.bar.set_length(runs as u64);
        self.bar.reset_elapsed();
        let template = if self.brief {
            "{state}"
        } else {
            "{elapsed_precise} [{bar:30}] {pos}/{len} runs  {prefix}{msg}"
        };
        let style = ProgressStyle::with_template(template).expect("a valid template");
        let state = Arc::clone(&self.state);
        let write = move |_: &ProgressState, text: &mut dyn fmt::Write| {
            write!(text, "{state}").expect("writing to a string");
        };
        let style = style.progress_chars("=> ").with_key("state", write);
        self.bar.set_style(style);
        self.bar.enable_steady_tick(Duration::from_millis(500));
        if !self.brief {
            self.say(&format!(
                "{}: {runs} runs, {jobs} at a time",
                scenario.title
            ));
        }
    }

    /// Calls `work`; prints the state meanwhile if that takes lines.
    pub(super) fn report_during(&self, work: impl FnOnce()) {
        if !self.brief || self.output != Output::Lines {
            return work();
        }
        let (done, ended) = mpsc::channel::<()>();
        let report = move || {
            while ended.recv_timeout(LINE_PERIOD) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{}", self.state);
            }
        };
        thread::scope(|scope| {
            scope.spawn(report);
            work();
            drop(done);
        });
    }

    /// Adds a transfer to the state until it is dropped.
    pub(super) fn transfer(&self, size: u64) -> Arc<Transfer> {
        let transfer = Arc::new(Transfer {
            size,
            arrived: AtomicU64::new(0),
        });
        self.state.transfers.lock().push(Arc::downgrade(&transfer));
        transfer
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
        if self.brief {
            if result.outcome != Outcome::Good {
                self.say(&text);
            }
            return;
        }
        let left = pace
            .left(self.bar.elapsed())
            .filter(|_| pace.done < pace.runs);
        let left = left.filter(|left| !left.is_zero()).map(about);
        if self.output == Output::Lines {
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
        let mut pace = self.state.pace.lock();
        pace.finish(Duration::try_from_secs_f64(result.took_s).unwrap_or_default());
        *pace
    }

    pub(super) fn retry(&self, scenario: &Scenario, spec: &RunSpec, reason: &str) {
        let what = scenario.describe(spec);
        self.state.pace.lock().again += 1;
        self.say(&format!("{what}: machine too busy, repeating ({reason})"));
    }

    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }

    fn say(&self, text: &str) {
        if self.output == Output::Lines {
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

    #[test]
    fn the_state_counts_runs_and_transfers_that_still_run() {
        let progress = Progress::silent();
        progress.state.pace.lock().runs = 3;
        progress.state.pace.lock().finish(Duration::from_secs(1));
        assert_eq!(progress.state.to_string(), "  0 s: 1 of 3 runs done");
        let (slow, fast) = (progress.transfer(1000), progress.transfer(500));
        slow.bytes().store(199, Relaxed);
        fast.bytes().store(400, Relaxed);
        assert_eq!(
            progress.state.to_string(),
            "  0 s: 1 of 3 runs done; of 2 transfers 19 to 80 % have arrived"
        );
        drop(fast);
        assert_eq!(
            progress.state.to_string(),
            "  0 s: 1 of 3 runs done; of 1 transfer 19 % have arrived"
        );
    }
}
