//! What had to hold, and whether it does.

use serde::Serialize;

use super::{summary::Summary, workloads};
use crate::lab::{
    run::RunResult,
    scenario::{Check, RunSpec, Scenario},
};

/// A check at one point of the matrix.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CheckResult {
    /// The check.
    #[serde(flatten)]
    pub check: Check,
    /// The workload, where the check is for all.
    pub at_workload: String,
    /// The values of the matrix.
    pub at_point: Vec<String>,
    /// The ratio of the means; `None` when a side has no run that counts.
    pub mean_ratio: Option<f64>,
    /// Whether the ratio is there and within its bounds.
    pub holds: bool,
}

/// Judges the checks at all places where both variants were to run.
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
                let sides = [&check.variant, &check.baseline];
                if !sides.iter().all(|side| chosen(workload, &indices, side)) {
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
    let ratio = mean(&check.variant)
        .zip(mean(&check.baseline))
        .map(|(a, b)| a / b);
    let holds = ratio.is_some_and(|ratio| {
        check.mean_ratio_min.is_none_or(|min| ratio >= min)
            && check.mean_ratio_max.is_none_or(|max| ratio <= max)
    });
    let settings = scenario.settings(indices);
    CheckResult {
        check: check.clone(),
        at_workload: workload.to_owned(),
        at_point: settings
            .map(|(key, value)| format!("{key} {}", value.value()))
            .collect(),
        mean_ratio: ratio,
        holds,
    }
}

/// One line for each check; `None` without checks.
pub(super) fn text(results: &[CheckResult]) -> Option<String> {
    let line = |result: &CheckResult| {
        let check = &result.check;
        let word = if result.holds { "holds " } else { "BROKEN" };
        let place = [vec![result.at_workload.clone()], result.at_point.clone()].concat();
        let ratio = result
            .mean_ratio
            .map_or("no data".to_owned(), |ratio| format!("{ratio:.3}"));
        let min = check.mean_ratio_min.map(|min| format!("at least {min}"));
        let max = check.mean_ratio_max.map(|max| format!("at most {max}"));
        let bounds: Vec<_> = min.into_iter().chain(max).collect();
        format!(
            "{word} {}: mean {} of `{}` / `{}` = {ratio} ({})",
            place.join(", "),
            check.metric.name(),
            check.variant,
            check.baseline,
            bounds.join(", "),
        )
    };
    let lines: Vec<_> = results.iter().map(line).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}
