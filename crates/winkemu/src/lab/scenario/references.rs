//! What others measured or a model says, to stand beside the results.

use super::{Axis, Reference, checks::read_metric, error::Findings, links, raw::RawReference};

/// Where a reference says nothing.
const NOTHING: &str = "none";

/// Reads a reference: one value, or one for each of the matrix's first key.
pub(super) fn read(
    raw: &RawReference,
    matrix: &[Axis],
    findings: &mut Findings<'_>,
) -> Option<Reference> {
    let metric = read_metric(&raw.metric, "reference.metric", findings)?;
    let places = matrix.first().map_or(1, |axis| axis.values.len());
    let given = raw.values.get_ref();
    if given.len() != 1 && given.len() != places {
        let message =
            format!("must hold one value, or {places}: one for each of [matrix]'s first key");
        findings.add(raw.values.span(), "reference.values", message);
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
    Some(Reference {
        name: raw.name.clone(),
        metric,
        values,
    })
}
