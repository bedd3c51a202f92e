//! Brief results of transfers: one table of their times, and a sentence per variant.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};

use super::{
    significant,
    summary::{Summary, median},
    workloads,
};
use crate::lab::{
    run::{Measurement, Outcome, RunResult},
    scenario::{Metric, RunSpec, Scenario},
};

/// Columns of text.
pub(super) const WIDTH: usize = 98;

type Runs = [(RunSpec, RunResult)];

/// Column of the table: a workload at a point of the matrix.
#[derive(Debug, PartialEq)]
pub(super) struct Column<'a> {
    workload: &'a str,
    point: Vec<usize>,
}

impl Column<'_> {
    /// Name of the column in one line.
    pub fn title(&self, scenario: &Scenario) -> String {
        let words = words(scenario, &self.point);
        let parts = [self.workload.to_owned()].into_iter().chain(words);
        parts.collect::<Vec<_>>().join(", ")
    }
}

/// Columns in which a run counts, ordered by the points of the matrix.
pub(super) fn columns<'a>(scenario: &'a Scenario, runs: &Runs) -> Vec<Column<'a>> {
    let points = scenario.points().into_iter();
    let columns = points.flat_map(|point| {
        workloads(scenario).map(move |workload| Column {
            workload,
            point: point.clone(),
        })
    });
    columns
        .filter(|column| measured(runs, column).next().is_some())
        .collect()
}

/// Measurements of a column that count, each with the number of its variant.
pub(super) fn measured<'a>(
    runs: &'a Runs,
    column: &Column<'_>,
) -> impl Iterator<Item = (usize, &'a Measurement)> {
    let chosen = runs
        .iter()
        .filter(|(spec, result)| result.outcome == Outcome::Good && spec.point == column.point);
    let all = chosen.flat_map(|(spec, result)| {
        let of = result.measurements.iter();
        of.map(|measured| (spec.variant, measured))
    });
    all.filter(|(_, measured)| measured.workload == column.workload)
}

/// Values of a point in words.
fn words<'a>(scenario: &'a Scenario, point: &'a [usize]) -> impl Iterator<Item = String> + 'a {
    scenario
        .settings(point)
        .map(|(key, value)| scenario.words(key, value))
}

/// Time of a transfer, the median of its runs.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Time {
    /// Seconds until it was complete.
    Complete(f64),
    /// The part that had arrived when the time limit ended one of its runs.
    Cut { after_s: f64, bytes: f64, of: f64 },
}

/// Speed relative to the baseline.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Gain {
    factor: f64,
    /// True if the baseline was cut off, so that the factor is a lower bound.
    at_least: bool,
}

impl Time {
    /// Part of the file that had arrived, 0 to 1, and the time limit; `None` if it is complete.
    fn cut(self) -> Option<(f64, f64)> {
        match self {
            Self::Cut { after_s, bytes, of } => Some((bytes / of, after_s)),
            Self::Complete(_) => None,
        }
    }

    /// Gain over the baseline's time; `None` if this transfer was cut off.
    fn gain(self, baseline: Self) -> Option<Gain> {
        let Self::Complete(seconds) = self else {
            return None;
        };
        let (theirs, at_least) = match baseline {
            Self::Complete(seconds) => (seconds, false),
            Self::Cut { after_s, .. } => (after_s, true),
        };
        let factor = theirs / seconds;
        Some(Gain { factor, at_least })
    }
}

/// Times of all variants, with what they are computed from.
pub(super) struct Transfers<'a> {
    scenario: &'a Scenario,
    summary: &'a Summary,
    runs: &'a Runs,
    columns: Vec<Column<'a>>,
}

impl<'a> Transfers<'a> {
    pub fn new(scenario: &'a Scenario, summary: &'a Summary, runs: &'a Runs) -> Self {
        Self {
            scenario,
            summary,
            runs,
            columns: columns(scenario, runs),
        }
    }

    /// Formats the table; `None` without a run that counts.
    pub fn table(&self) -> Option<String> {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED);
        table.set_content_arrangement(ContentArrangement::Disabled);
        let head = |column: &Column<'_>| {
            let words = words(self.scenario, &column.point);
            let lines = [column.workload.to_owned()].into_iter().chain(words);
            lines.collect::<Vec<_>>().join("\n")
        };
        let heads = self.columns.iter().map(head);
        table.set_header([String::new()].into_iter().chain(heads));
        for (variant, named) in self.scenario.variants.iter().enumerate() {
            let cells = self.columns.iter().map(|column| self.cell(column, variant));
            table.add_row([named.name.clone()].into_iter().chain(cells));
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let baseline = self.scenario.baseline.as_ref();
        let ratio = baseline.map_or(String::new(), |name| {
            format!("; \u{d7} times as fast as `{name}`")
        });
        let caption = format!("Time to completion, or the part that arrived{ratio}");
        (!self.columns.is_empty()).then(|| format!("{caption}\n{table}"))
    }

    /// Formats a sentence per variant that has values.
    pub fn sentences(&self) -> Option<String> {
        let variants = 0..self.scenario.variants.len();
        let sentences = variants.filter_map(|variant| {
            let parts = [self.used(variant), self.completed(variant)];
            let parts = parts.into_iter().flatten().chain(self.delays(variant));
            let parts: Vec<_> = parts.collect();
            let name = &self.scenario.variants[variant].name;
            (!parts.is_empty()).then(|| wrapped(&format!("{name}: {}.", parts.join("; ")), WIDTH))
        });
        let sentences: Vec<_> = sentences.collect();
        (!sentences.is_empty()).then(|| sentences.join("\n"))
    }

    fn cell(&self, column: &Column<'_>, variant: usize) -> String {
        match self.time(column, variant) {
            Some(Time::Complete(seconds)) => {
                let seconds = significant(seconds);
                let gain = self.gain(column, variant);
                let gain = gain.map_or(String::new(), |gain| {
                    let bound = if gain.at_least { "\u{2265}" } else { "" };
                    format!("  {bound}\u{d7}{}", significant(gain.factor))
                });
                format!("{seconds} s{gain}")
            }
            Some(Time::Cut { after_s, bytes, .. }) => {
                let (megabytes, after) = (significant(bytes / 1e6), significant(after_s));
                format!("{megabytes} MB in {after} s")
            }
            None => "-".to_owned(),
        }
    }

    fn time(&self, column: &Column<'_>, variant: usize) -> Option<Time> {
        let of = |(number, measured)| (number == variant).then_some(measured);
        let runs: Vec<&Measurement> = measured(self.runs, column).filter_map(of).collect();
        let cut = runs.iter().find_map(|run| run.incomplete);
        if let Some(cut) = cut {
            let arrived =
                |run: &&Measurement| run.incomplete.map_or(cut.bytes, |of| of.arrived_bytes);
            let mut bytes: Vec<_> = runs.iter().map(|run| arrived(run) as f64).collect();
            bytes.sort_by(f64::total_cmp);
            return Some(Time::Cut {
                after_s: cut.after_s,
                bytes: median(&bytes),
                of: cut.bytes as f64,
            });
        }
        self.median(column, variant, Metric::Seconds)
            .map(Time::Complete)
    }

    fn median(&self, column: &Column<'_>, variant: usize, metric: Metric) -> Option<f64> {
        let name = &self.scenario.variants[variant].name;
        let cell = self
            .summary
            .find(column.workload, &column.point, name, metric);
        cell.map(|cell| cell.median)
    }

    /// Gain over the baseline; `None` for the baseline.
    fn gain(&self, column: &Column<'_>, variant: usize) -> Option<Gain> {
        let name = self.scenario.baseline.as_ref()?;
        let mut variants = self.scenario.variants.iter();
        let baseline = variants.position(|variant| variant.name == *name)?;
        let ours = self.time(column, variant).filter(|_| variant != baseline)?;
        ours.gain(self.time(column, baseline)?)
    }

    /// Goodput as a part of what the link can carry.
    fn used(&self, variant: usize) -> Option<String> {
        let columns = self.columns.iter();
        let shares = columns.filter_map(|of| self.median(of, variant, Metric::Utilisation));
        let shares = range(shares, |share| format!("{:.0}", share * 100.0))?;
        Some(format!("used {shares} % of what the link could carry"))
    }

    /// Gain at the first point, or the parts that had arrived.
    fn completed(&self, variant: usize) -> Option<String> {
        let times: Vec<_> = self
            .columns
            .iter()
            .filter_map(|column| self.time(column, variant))
            .collect();
        let cut = || times.iter().filter_map(|time| time.cut());
        if let Some(part) = range(cut().map(|(part, _)| part), |part| {
            format!("{:.0}", (part * 100.0).floor())
        }) {
            let after = range(cut().map(|(_, after_s)| after_s), significant)?;
            let (cut, all) = (cut().count(), times.len());
            let which = if cut == all {
                "no transfer".to_owned()
            } else {
                format!("{cut} of {all} transfers not")
            };
            return Some(format!(
                "{which} complete after {after} s, when {part} % had arrived"
            ));
        }
        // Outages and the like at the other points add as much to all variants.
        let first = self.scenario.points().swap_remove(0);
        let columns = self.columns.iter().filter(|of| of.point == first);
        let gains: Vec<_> = columns.filter_map(|of| self.gain(of, variant)).collect();
        let factors = || gains.iter().map(|gain| gain.factor);
        let name = self.scenario.baseline.as_ref()?;
        let text = if gains.iter().any(|gain| gain.at_least) {
            let factor = factors().min_by(f64::total_cmp)?;
            format!("at least {}", significant(factor))
        } else {
            range(factors(), significant)?
        };
        Some(format!("{text} times as fast as `{name}`"))
    }

    /// Time that each value of the matrix but the first adds to that at the first.
    fn delays(&self, variant: usize) -> Vec<String> {
        let points = self.scenario.points();
        let Some((first, others)) = points.split_first() else {
            return Vec::new();
        };
        let seconds = |workload: &'a str, point: &[usize]| {
            let point = point.to_vec();
            match self.time(&Column { workload, point }, variant) {
                Some(Time::Complete(seconds)) => Some(seconds),
                _ => None,
            }
        };
        let delay = |point: &Vec<usize>| {
            let workloads = workloads(self.scenario);
            let added =
                workloads.filter_map(|name| Some(seconds(name, point)? - seconds(name, first)?));
            let added = range(added, |added| format!("{added:.1}"))?;
            let words = words(self.scenario, point).collect::<Vec<_>>().join(", ");
            Some(format!("{added} s longer with {words}"))
        };
        others.iter().filter_map(delay).collect()
    }
}

/// Minimum and maximum in words, once if they read the same; `None` without values.
fn range(values: impl Iterator<Item = f64>, words: impl Fn(f64) -> String) -> Option<String> {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    let (first, last) = (words(*values.first()?), words(*values.last()?));
    Some(if first == last {
        first
    } else {
        format!("{first} to {last}")
    })
}

/// Breaks a text into lines of at most `width` characters, and indents all but the first.
pub(super) fn wrapped(text: &str, width: usize) -> String {
    let mut wrapped = String::new();
    let mut column = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > width {
            wrapped += "\n    ";
            column = 4;
        } else if column > 0 {
            wrapped.push(' ');
            column += 1;
        }
        wrapped += word;
        column += length;
    }
    wrapped
}
