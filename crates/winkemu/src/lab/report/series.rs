//! Goodput over time: one figure per bulk workload, one panel per point of the matrix.

use plotters::prelude::*;

use super::{
    figure::{
        Area, Figure, FigureError, Page, color, drawing, note, over_time, panel_name, round_up,
    },
    short,
};
use crate::lab::{
    program::Bulk,
    run::{Outcome, RunResult},
    scenario::{Program, RunSpec, Scenario, Workload},
};

const COLUMNS: usize = 2;

type Runs = [(RunSpec, RunResult)];

pub(super) fn figures(scenario: &Scenario, runs: &Runs) -> Result<Vec<Figure>, FigureError> {
    let workloads = scenario.groups.iter().flat_map(|group| &group.workloads);
    let mut figures = Vec::new();
    for workload in workloads {
        if let Program::Bulk(bulk) = &workload.program {
            figures.extend(figure(scenario, runs, workload, bulk)?);
        }
    }
    Ok(figures)
}

fn figure(
    scenario: &Scenario,
    runs: &Runs,
    workload: &Workload,
    bulk: &Bulk,
) -> Result<Option<Figure>, FigureError> {
    let view = View {
        scenario,
        runs,
        workload,
        bulk,
    };
    let mut points = scenario.points();
    points.retain(|point| (0..scenario.variants.len()).any(|v| !view.lines(point, v).is_empty()));
    if points.is_empty() {
        return Ok(None);
    }
    let peak = points.iter().flat_map(|point| {
        let variants = 0..scenario.variants.len();
        variants
            .flat_map(|variant| view.mean(point, variant))
            .map(|(_, value)| value)
    });
    let top = round_up(peak.fold(0.0, f64::max) * 1.05);
    let many = scenario.seeds.len() > 1;
    let runs = if many {
        ": mean of all seeds (thin lines: single runs)"
    } else {
        ""
    };
    let page = Page {
        name: format!("{}-over-time", workload.name.replace(' ', "-")),
        title: &scenario.title,
        subtitle: format!("{}: goodput at the receiver in Mbit/s{runs}", workload.name),
        legend: scenario
            .variants
            .iter()
            .map(|variant| variant.name.clone())
            .collect(),
        lines: Vec::new(),
        panels: points.len(),
        columns: COLUMNS,
    };
    page.draw(|index, area| view.draw(&points[index], top, area))
        .map(Some)
}

struct View<'a> {
    scenario: &'a Scenario,
    runs: &'a Runs,
    workload: &'a Workload,
    bulk: &'a Bulk,
}

impl View<'_> {
    /// Time series of each run that counts: seconds and Mbit/s.
    fn lines(&self, point: &[usize], variant: usize) -> Vec<Vec<(f64, f64)>> {
        let chosen = self.runs.iter().filter(|(spec, result)| {
            spec.point == point && spec.variant == variant && result.outcome == Outcome::Good
        });
        let measured = chosen.flat_map(|(_, result)| &result.measurements);
        let of = measured.filter(|measured| measured.workload == self.workload.name);
        of.filter_map(|measured| {
            let series = measured.detail["series"].as_array()?;
            let point = |point: &serde_json::Value| {
                Some((point["t_s"].as_f64()?, point["bps"].as_f64()? * 1e-6))
            };
            series.iter().map(point).collect()
        })
        .collect()
    }

    fn mean(&self, point: &[usize], variant: usize) -> Vec<(f64, f64)> {
        let lines = self.lines(point, variant);
        let Some(first) = lines.first() else {
            return Vec::new();
        };
        let mean = |index: usize| {
            let values = lines
                .iter()
                .filter_map(|line| line.get(index))
                .map(|(_, value)| value);
            values.sum::<f64>() / lines.len() as f64
        };
        first
            .iter()
            .enumerate()
            .map(|(index, (t, _))| (*t, mean(index)))
            .collect()
    }

    fn draw(&self, point: &[usize], top: f64, area: &Area<'_>) -> Result<(), FigureError> {
        let end = (self.bulk.duration.as_secs_f64(), "seconds since connect()");
        let warmup = self.bulk.warmup.as_secs_f64();
        let mut chart = over_time(area, end, (top, "Mbit/s"), &[(0.0, warmup)])?;
        for variant in 0..self.scenario.variants.len() {
            let lines = self.lines(point, variant);
            for line in lines.iter().filter(|_| lines.len() > 1) {
                let thin = LineSeries::new(line.iter().copied(), color(variant).mix(0.2));
                chart.draw_series(thin).map_err(drawing)?;
            }
        }
        for variant in 0..self.scenario.variants.len() {
            let style = color(variant).stroke_width(2);
            let line = LineSeries::new(self.mean(point, variant), style);
            chart.draw_series(line).map_err(drawing)?;
        }
        if warmup > 0.0 {
            note(&chart, area, (0.0, top), "not counted")?;
        }
        panel_name(&chart, area, &self.name(point))
    }

    fn name(&self, point: &[usize]) -> String {
        let settings = self.scenario.settings(point);
        let parts: Vec<_> = settings
            .map(|(key, value)| format!("{} {}", short(key), value.value()))
            .collect();
        if parts.is_empty() {
            self.workload.name.clone()
        } else {
            parts.join(", ")
        }
    }
}
