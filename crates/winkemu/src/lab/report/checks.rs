//! Evaluation of the checks of a scenario.

use serde::Serialize;
use serde_json::Value;

use super::{format_value, summary::Summary, workloads};
use crate::lab::{
    run::RunResult,
    scenario::{Check, RunSpec, Scenario},
};

/// Result of a check at one point of the matrix.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CheckResult {
    /// Check.
    #[serde(flatten)]
    pub check: Check,
    /// Workload, if the check is for all of them.
    pub at_workload: String,
    /// Values of the matrix.
    pub at_point: Vec<String>,
    /// Mean of the variant; `None` without a run that counts.
    pub mean: Option<f64>,
    /// Ratio of the means; `None` if either side has no run that counts, or without a baseline.
    pub mean_ratio: Option<f64>,
    /// True if the bounded values exist and lie within their bounds.
    pub holds: bool,
}

impl CheckResult {
    /// Reports whether the bounded values exist.
    fn has_values(&self) -> bool {
        self.mean.is_some() && (self.check.baseline.is_none() || self.mean_ratio.is_some())
    }
}

/// Evaluates the checks at every point where their variants were planned.
pub(super) fn evaluate(
    scenario: &Scenario,
    summary: &Summary,
    runs: &[(RunSpec, RunResult)],
) -> Vec<CheckResult> {
    let chosen = |workload: &str, indices: &[usize], variant: &str| {
        runs.iter().any(|(spec, _)| {
            let group = &scenario.groups[spec.group].workloads;
            let holds = group.iter().any(|of| of.name == workload);
            holds && spec.point == indices && scenario.variant(spec).name == variant
        })
    };
    let mut results = Vec::new();
    for check in &scenario.checks {
        for workload in workloads(scenario) {
            if check
                .workload
                .as_deref()
                .is_some_and(|wanted| wanted != workload)
            {
                continue;
            }
            for indices in scenario.points() {
                let mut sides = [&check.variant].into_iter().chain(&check.baseline);
                if !scenario.is_at(&check.at, &indices)
                    || !sides.all(|side| chosen(workload, &indices, side))
                {
                    continue;
                }
                results.push(evaluate_at(scenario, summary, check, workload, &indices));
            }
        }
    }
    results
}

fn evaluate_at(
    scenario: &Scenario,
    summary: &Summary,
    check: &Check,
    workload: &str,
    indices: &[usize],
) -> CheckResult {
    let mean = |variant: &str| {
        let cell = summary.find(workload, indices, variant, check.metric);
        cell.map(|cell| cell.mean)
    };
    let ours = mean(&check.variant);
    let theirs = check.baseline.as_deref().and_then(mean);
    let ratio = ours.zip(theirs).map(|(a, b)| a / b);
    let holds = is_within(ratio, check.mean_ratio_min, check.mean_ratio_max)
        && is_within(ours, check.min, check.max);
    let settings = scenario.settings(indices);
    CheckResult {
        check: check.clone(),
        at_workload: workload.to_owned(),
        at_point: settings
            .map(|(key, value)| format!("{key} {}", value.value()))
            .collect(),
        mean: ours,
        mean_ratio: ratio,
        holds,
    }
}

/// Reports whether a value lies within its bounds; a bounded value must exist.
fn is_within(value: Option<f64>, min: Option<f64>, max: Option<f64>) -> bool {
    (min.is_none() && max.is_none())
        || value.is_some_and(|value| {
            min.is_none_or(|min| value >= min) && max.is_none_or(|max| value <= max)
        })
}

impl CheckResult {
    /// All fields, the unit and scale of the values, and `text`: all in one line.
    pub(super) fn to_json(&self) -> Value {
        let mut value = serde_json::to_value(self).expect("plain data becomes JSON");
        value["unit"] = self.check.metric.unit().into();
        value["scale"] = self.check.metric.scale().into();
        value["text"] = self.line().into();
        value
    }

    /// Place, values and bounds in one line.
    fn line(&self) -> String {
        let place = [vec![self.at_workload.clone()], self.at_point.clone()].concat();
        let parts: Vec<_> = ratio_text(self)
            .into_iter()
            .chain(mean_text(self))
            .collect();
        format!("{}: {}", place.join(", "), parts.join("; "))
    }
}

/// Formats one line per check; `None` without checks.
pub(super) fn text(results: &[CheckResult]) -> Option<String> {
    let lines: Vec<_> = results.iter().map(line).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// Formats one line per broken check, or the number of those that hold; `None` without checks.
/// Where runs are missing, a check without a value is left out: the reason is reported anyway.
pub(super) fn brief_text(results: &[CheckResult], runs_are_missing: bool) -> Option<String> {
    let mut broken: Vec<_> = results.iter().filter(|result| !result.holds).collect();
    if broken.is_empty() && !results.is_empty() {
        return Some(match results.len() {
            1 => "The check of the scenario holds.".to_owned(),
            number => format!("All {number} checks of the scenario hold."),
        });
    }
    broken.retain(|result| result.has_values() || !runs_are_missing);
    let lines: Vec<_> = broken.into_iter().map(line).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

fn line(result: &CheckResult) -> String {
    let word = if result.holds { "holds " } else { "BROKEN" };
    format!("{word} {}", result.line())
}

/// Ratio with its bounds, if any.
fn ratio_text(result: &CheckResult) -> Option<String> {
    let check = &result.check;
    let baseline = check.baseline.as_ref()?;
    let number = |value: f64| value.to_string();
    Some(format!(
        "mean {} of `{}` / `{baseline}` = {} ({})",
        check.metric.name(),
        check.variant,
        result
            .mean_ratio
            .map_or("no data".to_owned(), |ratio| format!("{ratio:.3}")),
        bounds(
            check.mean_ratio_min.map(number),
            check.mean_ratio_max.map(number)
        ),
    ))
}

/// Mean with its bounds, if any.
fn mean_text(result: &CheckResult) -> Option<String> {
    let check = &result.check;
    check.min.or(check.max)?;
    let unit = check.metric.unit();
    let words = |value: f64| format!("{} {unit}", format_value(check.metric, value));
    Some(format!(
        "mean {} of `{}` = {} ({})",
        check.metric.name(),
        check.variant,
        result.mean.map_or("no data".to_owned(), words),
        bounds(check.min.map(words), check.max.map(words)),
    ))
}

fn bounds(min: Option<String>, max: Option<String>) -> String {
    let min = min.map(|min| format!(">= {min}"));
    let max = max.map(|max| format!("<= {max}"));
    let both: Vec<_> = min.into_iter().chain(max).collect();
    both.join(", ")
}
