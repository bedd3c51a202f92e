//! References: published or predicted values shown beside the results.

use toml::Spanned;

use super::{
    Axis, Metric, Reference, Setting,
    checks::{read_metric, read_places},
    error::Findings,
    links,
    raw::{RawPredict, RawReference},
};
use crate::link::{Wink, predict::Prediction};

/// Placeholder for a missing value of a reference.
const NOTHING: &str = "none";

/// Reads a reference: its values, or a model to predict them.
pub(super) fn read(
    raw: &RawReference,
    matrix: &[Axis],
    findings: &mut Findings<'_>,
) -> Option<Reference> {
    let metric = read_metric(&raw.metric, "reference.metric", findings)?;
    let values = match (&raw.values, &raw.predict) {
        (Some(values), None) => said(values, metric, matrix, findings)?,
        (None, Some(predict)) => {
            let values = predicted(predict.get_ref(), metric, matrix);
            findings.take(predict.span(), "reference.predict", values)?
        }
        _ => {
            let message = "needs either `values` or `predict`";
            findings.add(raw.metric.span(), "reference", message);
            return None;
        }
    };
    Some(Reference {
        name: raw.name.clone(),
        metric,
        workload: raw.workload.as_ref().map(|name| name.get_ref().clone()),
        at: read_places(&raw.at, "reference", matrix, findings),
        values,
    })
}

/// Reads one value, or one per value of the matrix's first key.
fn said(
    values: &Spanned<Vec<Spanned<toml::Value>>>,
    metric: Metric,
    matrix: &[Axis],
    findings: &mut Findings<'_>,
) -> Option<Vec<Option<f64>>> {
    let places = matrix.first().map_or(1, |axis| axis.values.len());
    let given = values.get_ref();
    if given.len() != 1 && given.len() != places {
        let message =
            format!("must hold one value, or {places}: one per value of [matrix]'s first key");
        findings.add(values.span(), "reference.values", message);
        return None;
    }
    let mut values = Vec::with_capacity(places);
    for value in given {
        let text = links::text(value.get_ref());
        values.push(if text == NOTHING {
            None
        } else {
            let read = metric.read_bound(&text);
            Some(findings.take(value.span(), "reference.values", read)?)
        });
    }
    if let [everywhere] = values[..] {
        values = vec![everywhere; places];
    }
    Some(values)
}

/// Predicts a value for each wink of the matrix's first key.
fn predicted(
    raw: &RawPredict,
    metric: Metric,
    matrix: &[Axis],
) -> Result<Vec<Option<f64>>, String> {
    if metric != Metric::Seconds {
        return Err("predicts times: `metric` must be \"seconds\"".to_owned());
    }
    let winks = matrix.first().map(|axis| axis.values.iter().map(wink));
    let winks: Option<Vec<_>> = winks.and_then(Iterator::collect);
    let winks = winks.ok_or("needs winks: [matrix]'s first key must be `wink` of a link")?;
    let seconds = |wink| {
        let prediction = Prediction::new(raw.perfect.0, wink).map_err(|error| error.to_string())?;
        Ok(Some(prediction.seconds(raw.model)))
    };
    winks.into_iter().map(seconds).collect()
}

/// Wink of both directions.
fn wink(setting: &Setting) -> Option<Wink> {
    match setting {
        Setting::Link { option, value, .. } if option == "wink" => value.parse().ok(),
        _ => None,
    }
}
