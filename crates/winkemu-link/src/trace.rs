//! Values that change in steps over time, and their parsers.

use serde::{Serialize, Serializer};
use units::contacts::{Plan, PlanError, lines, seconds};

use super::{FOREVER, Nanos};

/// Unreadable trace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// Empty trace.
    #[error("file is empty; {expected}")]
    Empty {
        /// Expected content.
        expected: &'static str,
    },
    /// Contact plan with dates but without the time at which the link begins.
    #[error("contact plan has dates only; {expected}")]
    Plan {
        /// Expected content.
        expected: &'static str,
    },
    /// Invalid line.
    #[error("line {line}: `{text}`: {expected}")]
    Line {
        /// Line number, from 1.
        line: usize,
        /// Line as found.
        text: String,
        /// Expected content of the line.
        expected: &'static str,
    },
}

impl From<PlanError> for TraceError {
    fn from(err: PlanError) -> Self {
        match err {
            PlanError::Empty { expected } => Self::Empty { expected },
            PlanError::Line {
                line,
                text,
                expected,
            } => Self::Line {
                line,
                text,
                expected,
            },
        }
    }
}

/// Value that changes in steps and repeats after its last step.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace<T> {
    /// (from, value), sorted, the first at 0.
    steps: std::sync::Arc<[(Nanos, T)]>,
    /// Length of one round; [`FOREVER`] if the last value stays.
    period: Nanos,
}

impl<T: Copy> Trace<T> {
    /// Creates a trace of `(from, value)` steps that repeats every `period`; without one the last
    /// value stays.
    ///
    /// `None` unless the first step is at 0, the times rise, and the period lies behind them.
    pub fn new(steps: &[(Nanos, T)], period: Option<Nanos>) -> Option<Self> {
        let period = period.unwrap_or(FOREVER);
        let rising = steps.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let fits = steps.first()?.0 == 0 && rising && steps.last()?.0 < period;
        fits.then(|| Self {
            steps: steps.into(),
            period,
        })
    }

    /// Value at `now`, and the first instant at which it may differ.
    pub fn at(&self, now: Nanos) -> (T, Nanos) {
        let start = now - now % self.period;
        let next = self.steps.partition_point(|(from, _)| *from <= now - start);
        let end = self.steps.get(next).map_or(self.period, |(from, _)| *from);
        (self.steps[next - 1].1, start.saturating_add(end))
    }

    /// Steps of one round.
    pub fn steps(&self) -> &[(Nanos, T)] {
        &self.steps
    }

    /// Mean over one round, weighted by time; the last value if it stays for ever.
    pub fn mean(&self, value: impl Fn(T) -> f64) -> f64 {
        let last = self.steps[self.steps.len() - 1].1;
        if self.period == FOREVER {
            return value(last);
        }
        let ends = self.steps.iter().skip(1).map(|step| step.0);
        let ends = ends.chain([self.period]);
        let weighed = self.steps.iter().zip(ends);
        let sum: f64 = weighed
            .map(|(step, end)| value(step.1) * (end - step.0) as f64)
            .sum();
        sum / self.period as f64
    }
}

/// Serialises as the number of steps. Reports do not repeat the user's file.
impl<T> Serialize for Trace<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("trace of {} steps", self.steps.len()))
    }
}

const STEPS_EXPECTED: &str =
    "expected `seconds,value` with rising times from 0, such as `0.5,10mbit`";
const MAHIMAHI_EXPECTED: &str =
    "expected a millisecond, not before the line above, at which 1504 B may pass";
const REFERENCE_EXPECTED: &str =
    "expected a first line `@ yyyy/mm/dd-hh:mm:ss` with the time at which the link begins";
const LOSS_EXPECTED: &str = "expected one digit per packet: 0 arrives, 1 is lost";

fn line_error(line: usize, text: &str, expected: &'static str) -> TraceError {
    TraceError::Line {
        line,
        text: text.to_owned(),
        expected,
    }
}

/// Parses `seconds,value` lines, with values in their usual form (`10mbit`, `264ms`).
///
/// A last line of `seconds,end` makes the trace repeat from that time; without it the last value
/// stays.
///
/// # Errors
/// The first line that is not of this form.
pub fn parse_steps<T: Copy>(
    text: &str,
    value: impl Fn(&str) -> Option<T>,
) -> Result<Trace<T>, TraceError> {
    let (mut steps, mut period) = (Vec::new(), None);
    for (number, line) in lines(text) {
        let error = || line_error(number, line, STEPS_EXPECTED);
        let (time, rest) = line.split_once(',').ok_or_else(error)?;
        let time = seconds(time).ok_or_else(error)?;
        let before = steps.last().map(|(from, _)| *from);
        if period.is_some() || before.map_or(time != 0, |before| time <= before) {
            return Err(error());
        }
        if rest.trim() == "end" {
            period = Some(time);
        } else {
            steps.push((time, value(rest.trim()).ok_or_else(error)?));
        }
    }
    let empty = TraceError::Empty {
        expected: STEPS_EXPECTED,
    };
    Trace::new(&steps, period).ok_or(empty)
}

/// Parses a rate trace of `seconds,rate` lines or in mahimahi format.
///
/// A mahimahi trace has a millisecond per line, each an opportunity to send 1504 B. The parser
/// turns it into a rate per millisecond, which repeats.
///
/// # Errors
/// The first line that is of neither form.
pub fn parse_rates(text: &str) -> Result<Trace<u64>, TraceError> {
    if lines(text)
        .next()
        .is_some_and(|(_, line)| line.contains(','))
    {
        let zero = |text: &str| (text == "0").then_some(0);
        return parse_steps(text, |text| {
            zero(text).or_else(|| Some(text.parse::<units::Rate>().ok()?.bits_per_second()))
        });
    }
    parse_mahimahi(text)
}

fn parse_mahimahi(text: &str) -> Result<Trace<u64>, TraceError> {
    const BITS_PER_MS_AND_PACKET: u64 = 1504 * 8 * 1000;
    const MILLISECOND: Nanos = 1_000_000;
    let mut counts: Vec<u64> = Vec::new();
    for (number, line) in lines(text) {
        let ms = line.parse::<usize>().ok();
        // Limit of ten million milliseconds, or nearly three hours: far above published traces.
        let ms = ms.filter(|ms| ms + 1 >= counts.len() && *ms < 10_000_000);
        let ms = ms.ok_or_else(|| line_error(number, line, MAHIMAHI_EXPECTED))?;
        counts.resize(counts.len().max(ms + 1), 0);
        counts[ms] += 1;
    }
    let steps: Vec<_> = (0..)
        .zip(&counts)
        .map(|(i, n)| (i * MILLISECOND, n * BITS_PER_MS_AND_PACKET))
        .collect();
    let empty = TraceError::Empty {
        expected: MAHIMAHI_EXPECTED,
    };
    Trace::new(&steps, Some(counts.len() as u64 * MILLISECOND)).ok_or(empty)
}

/// Parses spans of time, counted from the start of the link or from the time that the contact plan
/// names.
///
/// # Errors
/// The first line that cannot be read, or a plan with dates that does not name the start of the
/// link.
pub fn parse_spans(text: &str) -> Result<Vec<(Nanos, Nanos)>, TraceError> {
    let plan = Plan::parse(text)?;
    if plan.reference() == Some(0) {
        let expected = REFERENCE_EXPECTED;
        return Err(TraceError::Plan { expected });
    }
    Ok(plan.spans().map(|span| (span.start, span.end)).collect())
}

/// Parses a loss trace: a 0 or 1 for each packet, with any spaces and line breaks.
///
/// # Errors
/// The first line with anything else.
pub fn parse_losses(text: &str) -> Result<Vec<bool>, TraceError> {
    let mut losses = Vec::new();
    for (number, line) in lines(text) {
        for digit in line.chars().filter(|c| !c.is_whitespace() && *c != ',') {
            match digit {
                '0' | '1' => losses.push(digit == '1'),
                _ => return Err(line_error(number, line, LOSS_EXPECTED)),
            }
        }
    }
    let expected = LOSS_EXPECTED;
    if losses.is_empty() {
        Err(TraceError::Empty { expected })
    } else {
        Ok(losses)
    }
}
