//! Tables for terminals.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};

use super::{
    short, significant,
    summary::{Cell, Summary},
    workloads,
};
use crate::lab::scenario::{Metric, Scenario};

/// Formats a table of a metric; `None` without values.
pub(super) fn table(scenario: &Scenario, summary: &Summary, metric: Metric) -> Option<String> {
    let cells: Vec<_> = summary
        .cells()
        .iter()
        .filter(|cell| cell.metric == metric)
        .collect();
    let most = cells.iter().map(|cell| cell.values.len()).max()?;
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_content_arrangement(ContentArrangement::Disabled);
    let axes = scenario
        .matrix
        .iter()
        .map(|axis| short(&axis.key).to_owned());
    let variants = scenario.variants.iter().map(|variant| variant.name.clone());
    let references = scenario.reference_names(metric);
    table.set_header(
        ["workload".to_owned()]
            .into_iter()
            .chain(axes)
            .chain(variants)
            .chain(references.into_iter().map(str::to_owned)),
    );
    for workload in workloads(scenario) {
        for indices in scenario.points() {
            if cells
                .iter()
                .any(|cell| cell.workload == workload && cell.indices == indices)
            {
                table.add_row(row(scenario, summary, metric, workload, &indices));
            }
        }
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    Some(format!("{}\n{table}", caption(scenario, metric, most)))
}

fn row(
    scenario: &Scenario,
    summary: &Summary,
    metric: Metric,
    workload: &str,
    indices: &[usize],
) -> Vec<String> {
    let find = |variant: &str| summary.find(workload, indices, variant, metric);
    let baseline = scenario.baseline.as_deref().and_then(find);
    let settings = scenario
        .settings(indices)
        .map(|(_, value)| value.value().to_owned());
    let cell = |name: &String| match find(name) {
        Some(cell) => cell_text(cell, baseline.filter(|baseline| baseline.variant != *name)),
        None => "-".to_owned(),
    };
    let variants = scenario.variants.iter().map(|variant| cell(&variant.name));
    let names = scenario.reference_names(metric).into_iter();
    let references = names.map(|name| {
        let value = scenario.reference(metric, name, workload, indices);
        value.map_or("-".to_owned(), |value| significant(value * metric.scale()))
    });
    [workload.to_owned()]
        .into_iter()
        .chain(settings)
        .chain(variants)
        .chain(references)
        .collect()
}

/// Median, range if there are several values, and ratio to the baseline unless that is zero.
fn cell_text(cell: &Cell, baseline: Option<&Cell>) -> String {
    let value = |value: f64| significant(value * cell.metric.scale());
    let mut text = value(cell.median);
    if cell.values.len() > 1 {
        text += &format!(" ({}\u{2013}{})", value(cell.min), value(cell.max));
    }
    if let Some(baseline) = baseline.filter(|baseline| baseline.median != 0.0) {
        text += &format!("  \u{d7}{}", significant(cell.median / baseline.median));
    }
    text
}

fn caption(scenario: &Scenario, metric: Metric, most: usize) -> String {
    let runs = match most {
        1 => "one run each".to_owned(),
        most => format!("median (min\u{2013}max) of {most} runs"),
    };
    let ratio = scenario.baseline.as_ref();
    let ratio = ratio.map_or(String::new(), |name| {
        format!(", \u{d7} relative to `{name}`")
    });
    let (title, label, unit) = (&scenario.title, metric.label(), metric.unit());
    format!("{title}\n{label}, {unit}; {runs}{ratio}")
}
