//! Statistics over the seeds.

use serde::Serialize;

use super::workloads;
use crate::lab::{
    run::{Outcome, RunResult},
    scenario::{Metric, RunSpec, Scenario},
};

/// Summary with a cell per workload, point of the matrix, variant and metric that has values.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(transparent)]
pub struct Summary {
    cells: Vec<Cell>,
}

/// Values of a metric over all runs that count.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cell {
    /// Name of the workload.
    pub workload: String,
    /// Values of the matrix, in the order of its axes.
    pub point: Vec<String>,
    #[serde(skip)]
    pub(super) indices: Vec<usize>,
    /// Name of the variant.
    pub variant: String,
    /// Metric.
    pub metric: Metric,
    /// Values in the order of the seeds: bit/s or seconds.
    pub values: Vec<f64>,
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub median: f64,
    /// Standard deviation of the sample; 0 for one value.
    pub deviation: f64,
    /// Minimum.
    pub min: f64,
    /// Maximum.
    pub max: f64,
}

impl Summary {
    pub(super) fn new(scenario: &Scenario, runs: &[(RunSpec, RunResult)]) -> Self {
        let mut cells = Vec::new();
        for workload in workloads(scenario) {
            for indices in scenario.points() {
                for (variant, named) in scenario.variants.iter().enumerate() {
                    for (_, metric) in Metric::ALL {
                        let chosen = runs.iter().filter(|(spec, result)| {
                            let good = result.outcome == Outcome::Good;
                            good && spec.variant == variant && spec.point == indices
                        });
                        let measured = chosen.flat_map(|(_, result)| &result.measurements);
                        let of: Vec<_> = measured
                            .filter(|measured| measured.workload == workload)
                            .collect();
                        // The times of the complete ones alone would be too short on average.
                        if metric == Metric::Seconds && of.iter().any(|of| of.incomplete.is_some())
                        {
                            continue;
                        }
                        let values = of.iter().filter_map(|of| of.value(metric)).collect();
                        let settings = scenario.settings(&indices);
                        let point = settings
                            .map(|(_, value)| value.value().to_owned())
                            .collect();
                        let place = (workload, point, &*named.name, metric);
                        cells.extend(Cell::new(place, indices.clone(), values));
                    }
                }
            }
        }
        Self { cells }
    }

    /// All cells.
    pub fn cells(&self) -> &[Cell] {
        &self.cells
    }

    /// Finds the cell of a workload, point, variant and metric, if a run there counts.
    pub(super) fn find(
        &self,
        workload: &str,
        indices: &[usize],
        variant: &str,
        metric: Metric,
    ) -> Option<&Cell> {
        self.cells.iter().find(|cell| {
            cell.workload == workload
                && cell.indices == indices
                && cell.variant == variant
                && cell.metric == metric
        })
    }
}

impl Cell {
    fn new(
        (workload, point, variant, metric): (&str, Vec<String>, &str, Metric),
        indices: Vec<usize>,
        values: Vec<f64>,
    ) -> Option<Self> {
        let mut sorted = values.clone();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        Some(Self {
            workload: workload.to_owned(),
            point,
            indices,
            variant: variant.to_owned(),
            metric,
            mean,
            median: median(&sorted),
            deviation: deviation(&values, mean),
            min,
            max,
            values,
        })
    }
}

/// Median of sorted values, of which there must be one.
pub(super) fn median(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) {
        f64::midpoint(sorted[half - 1], sorted[half])
    } else {
        sorted[half]
    }
}

fn deviation(values: &[f64], mean: f64) -> f64 {
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let freedom = values.len().saturating_sub(1).max(1);
    (squares / freedom as f64).sqrt()
}
