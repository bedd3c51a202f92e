//! Checks from the scenario file.

use toml::{Spanned, Value};

use super::{
    Axis, Check, Metric,
    error::Findings,
    links,
    raw::{RawCheck, Table},
};

/// Reads a check. The names in it are verified later, with all others.
pub(super) fn read(raw: &RawCheck, matrix: &[Axis], findings: &mut Findings<'_>) -> Option<Check> {
    let metric = match &raw.metric {
        Some(name) => read_metric(name, "check.metric", findings)?,
        None => Metric::Goodput,
    };
    let ratio = |bound: &Option<Spanned<f64>>| bound.as_ref().map(|bound| *bound.get_ref());
    let check = Check {
        variant: raw.variant.get_ref().clone(),
        baseline: raw.baseline.as_ref().map(|name| name.get_ref().clone()),
        workload: raw.workload.as_ref().map(|name| name.get_ref().clone()),
        metric,
        at: read_places(&raw.at, "check", matrix, findings),
        mean_ratio_min: ratio(&raw.mean_ratio_min),
        mean_ratio_max: ratio(&raw.mean_ratio_max),
        min: bound(metric, raw.min.as_ref(), "check.min", findings),
        max: bound(metric, raw.max.as_ref(), "check.max", findings),
    };
    is_complete(raw, findings);
    Some(check)
}

/// Reads the name of a metric.
pub(super) fn read_metric(
    name: &Spanned<String>,
    key: &str,
    findings: &mut Findings<'_>,
) -> Option<Metric> {
    let found = Metric::ALL
        .iter()
        .find(|(known, _)| known == name.get_ref());
    if found.is_none() {
        let names = Metric::ALL.map(|(name, _)| name).join(", ");
        let message = format!("unknown metric `{}`; metrics are {names}", name.get_ref());
        findings.add(name.span(), key, message);
    }
    found.map(|(_, metric)| *metric)
}

fn bound(
    metric: Metric,
    raw: Option<&Spanned<Value>>,
    key: &str,
    findings: &mut Findings<'_>,
) -> Option<f64> {
    let raw = raw?;
    let value = metric.read_bound(&links::text(raw.get_ref()));
    findings.take(raw.span(), key, value)
}

/// Verifies that a check is complete: ratios need a baseline, a baseline needs ratios, and a check
/// needs a bound.
fn is_complete(raw: &RawCheck, findings: &mut Findings<'_>) {
    let ratio = raw.mean_ratio_min.as_ref().or(raw.mean_ratio_max.as_ref());
    match (&raw.baseline, ratio) {
        (None, Some(ratio)) => {
            let message = "is missing: name the variant whose mean is the divisor";
            findings.add(ratio.span(), "check.baseline", message);
        }
        (Some(baseline), None) => {
            let message = "needs `mean_ratio_min` or `mean_ratio_max`";
            findings.add(baseline.span(), "check.baseline", message);
        }
        (None, None) if raw.min.is_none() && raw.max.is_none() => {
            let message = "needs a bound: `min`, `max`, or `mean_ratio_min` or `mean_ratio_max` \
                           with a `baseline`";
            findings.add(raw.variant.span(), "check", message);
        }
        _ => {}
    }
}

/// Values of the matrix to which a check or reference (`what`) is restricted, by axis.
pub(super) fn read_places(
    at: &Table<Value>,
    what: &str,
    matrix: &[Axis],
    findings: &mut Findings<'_>,
) -> Vec<(String, Vec<String>)> {
    let mut places = Vec::new();
    for (key, value) in at {
        let dotted = format!("{what}.at.\"{}\"", key.get_ref());
        let Some(axis) = matrix.iter().find(|axis| axis.key == *key.get_ref()) else {
            let keys: Vec<_> = matrix.iter().map(|axis| &*axis.key).collect();
            let message = format!("is not a key of [matrix]; keys are {}", keys.join(", "));
            findings.add(key.span(), &dotted, message);
            continue;
        };
        let values: Vec<_> = list(value.get_ref()).map(links::text).collect();
        for text in &values {
            if !axis.values.iter().any(|known| known.value() == text) {
                let known: Vec<_> = axis.values.iter().map(super::Setting::value).collect();
                let known = known.join(", ");
                let message = format!("`{text}` is not in [matrix]; values are {known}");
                findings.add(value.span(), &dotted, message);
            }
        }
        places.push((key.get_ref().clone(), values));
    }
    places
}

/// Elements of an array, or a single value.
fn list(value: &Value) -> impl Iterator<Item = &Value> {
    let (one, many) = match value {
        Value::Array(values) => (None, &**values),
        value => (Some(value), &[][..]),
    };
    one.into_iter().chain(many)
}
