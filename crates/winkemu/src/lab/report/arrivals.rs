//! Bytes of files that have arrived over time: one figure, one panel per workload and point of the
//! matrix.

use plotters::prelude::*;

use super::{
    figure::{
        Area, Figure, FigureError, Page, color, drawing, note, over_time, panel_name, round_up,
    },
    transfers::{Column, columns, measured},
};
use crate::lab::{
    run::{Measurement, RunResult},
    scenario::{RunSpec, Scenario},
};

const COLUMNS: usize = 2;
/// Unit of the value axis.
const MEGABYTE: f64 = 1e6;

type Runs = [(RunSpec, RunResult)];

/// Draws the arrivals; `None` if no workload has any.
pub(super) fn figure(scenario: &Scenario, runs: &Runs) -> Result<Option<Figure>, FigureError> {
    let mut panels = columns(scenario, runs);
    panels.retain(|column| lines(runs, column).next().is_some());
    let points = panels.iter().flat_map(|column| lines(runs, column));
    let ends = points.flat_map(|(_, of)| of.arrivals.last());
    let (end, top) = ends.fold((0.0, 0.0), |(end, top): (f64, f64), last| {
        (end.max(last.t_s), top.max(last.bytes as f64 / MEGABYTE))
    });
    if panels.is_empty() {
        return Ok(None);
    }
    let page = Page {
        name: "arrived".to_owned(),
        title: &scenario.title,
        subtitle: "MB that have arrived at the receiver, over time".to_owned(),
        legend: scenario
            .variants
            .iter()
            .map(|variant| variant.name.clone())
            .collect(),
        lines: Vec::new(),
        panels: panels.len(),
        columns: COLUMNS,
    };
    let top = round_up(top * 1.02);
    page.draw(|index, area| draw(scenario, runs, &panels[index], (end, top), area))
        .map(Some)
}

/// Measurements with arrivals, each with the number of its variant.
fn lines<'a>(
    runs: &'a Runs,
    column: &Column<'_>,
) -> impl Iterator<Item = (usize, &'a Measurement)> {
    measured(runs, column).filter(|(_, of)| !of.arrivals.is_empty())
}

fn draw(
    scenario: &Scenario,
    runs: &Runs,
    column: &Column<'_>,
    (end, top): (f64, f64),
    area: &Area<'_>,
) -> Result<(), FigureError> {
    let mut links = lines(runs, column).filter_map(|(_, of)| of.link_use.as_ref());
    let outage = links.find_map(|links| links.outage);
    let outage = outage.map(|outage| (outage.began_s, outage.ended_s));
    let shaded: Vec<_> = outage.into_iter().collect();
    let mut chart = over_time(area, (end, "seconds"), (top, "MB"), &shaded)?;
    for (variant, of) in lines(runs, column) {
        let points = of.arrivals.iter();
        let points = points.map(|at| (at.t_s, at.bytes as f64 / MEGABYTE));
        let points = [(0.0, 0.0)].into_iter().chain(points);
        let line = LineSeries::new(points, color(variant).stroke_width(2));
        chart.draw_series(line).map_err(drawing)?;
    }
    if let Some((from, _)) = outage {
        note(&chart, area, (from, top), "outage")?;
    }
    panel_name(&chart, area, &column.title(scenario))
}
