//! Bar plot of a metric: one panel per workload, one group per value of the first axis.

use plotters::{
    prelude::*,
    style::text_anchor::{HPos, VPos},
};

use super::{
    figure::{
        Area, FAINT, Figure, FigureError, GRID, INK, Page, color, draw_text, drawing, line_style,
        round_up, text, text_width, tick,
    },
    short, significant,
    summary::{Cell, Summary},
    workloads,
};
use crate::lab::scenario::{Metric, Scenario, Setting};

/// Panels per row.
const COLUMNS: usize = 2;
/// Share of a group's width taken by its bars.
const GROUP_WIDTH: f64 = 0.84;

/// Margin around a panel, in pixels.
const MARGIN: u32 = 8;
/// Width of the ticks and the name of the value axis, in pixels.
const AXIS_WIDTH: u32 = 62;
/// Maximum text sizes of the medians above the bars and of the values below them.
const MAX_LABEL: u32 = 12;
const TICK_MAX: u32 = 14;
const MIN_LABEL: u32 = 7;

/// Source of a panel's bars.
struct Panel<'a> {
    workload: &'a str,
    /// Values of all axes except the first.
    rest: Vec<usize>,
}

/// Draws a metric; `None` if there are no values.
pub(super) fn figure(
    scenario: &Scenario,
    summary: &Summary,
    metric: Metric,
) -> Result<Option<Figure>, FigureError> {
    let panels = panels(scenario, summary, metric);
    if panels.is_empty() {
        return Ok(None);
    }
    let page = Page {
        name: metric.name().replace('_', "-"),
        title: &scenario.title,
        subtitle: subtitle(summary, metric),
        legend: scenario
            .variants
            .iter()
            .map(|variant| variant.name.clone())
            .collect(),
        lines: scenario
            .reference_names(metric)
            .into_iter()
            .map(str::to_owned)
            .collect(),
        panels: panels.len(),
        columns: COLUMNS,
    };
    let cells = summary.cells().iter().filter(|cell| cell.metric == metric);
    let references = scenario.references.iter();
    let references = references.filter(|reference| reference.metric == metric);
    let references = references.flat_map(|reference| reference.values.iter().flatten().copied());
    let top = cells
        .map(|cell| cell.max)
        .chain(references)
        .map(|value| value * metric.scale())
        .fold(0.0, f64::max);
    let view = View {
        scenario,
        summary,
        metric,
        top: round_up(top * 1.1),
    };
    page.draw(|index, area| view.draw(&panels[index], area))
        .map(Some)
}

fn subtitle(summary: &Summary, metric: Metric) -> String {
    let cells = summary.cells().iter().filter(|cell| cell.metric == metric);
    let most = cells.map(|cell| cell.values.len()).max().unwrap_or(0);
    let label = format!("{} in {}", metric.label(), metric.unit());
    match most {
        0 | 1 => label,
        most => format!("{label}: median of {most} runs, with minimum and maximum"),
    }
}

fn panels<'a>(scenario: &'a Scenario, summary: &Summary, metric: Metric) -> Vec<Panel<'a>> {
    let mut panels: Vec<Panel<'_>> = Vec::new();
    for workload in workloads(scenario) {
        for indices in scenario.points() {
            let rest = indices.get(1..).unwrap_or(&[]).to_vec();
            let known = |panel: &Panel<'_>| panel.workload == workload && panel.rest == rest;
            let measured = summary.cells().iter().any(|cell| {
                cell.metric == metric && cell.workload == workload && cell.indices == indices
            });
            if measured && !panels.iter().any(known) {
                panels.push(Panel { workload, rest });
            }
        }
    }
    panels
}

struct View<'a> {
    scenario: &'a Scenario,
    summary: &'a Summary,
    metric: Metric,
    /// End of the value axis, shared by all panels.
    top: f64,
}

impl View<'_> {
    fn draw(&self, panel: &Panel<'_>, area: &Area<'_>) -> Result<(), FigureError> {
        let groups = self
            .scenario
            .matrix
            .first()
            .map_or(1, |axis| axis.values.len());
        let mut chart = ChartBuilder::on(area)
            .margin(MARGIN)
            .margin_top(34)
            .set_label_area_size(LabelAreaPosition::Left, AXIS_WIDTH)
            .set_label_area_size(LabelAreaPosition::Bottom, 46)
            .build_cartesian_2d(0.0..groups as f64, 0.0..self.top)
            .map_err(drawing)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .y_labels(6)
            .y_label_formatter(&|value| tick(*value))
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(FAINT)
            .label_style(text(14).color(&INK))
            .axis_desc_style(text(14).color(&FAINT))
            .y_desc(self.metric.axis_unit())
            .draw()
            .map_err(drawing)?;
        for group in 0..groups {
            for (series, variant) in self.scenario.variants.iter().enumerate() {
                let indices = self.indices(panel, group);
                let cell = self
                    .summary
                    .find(panel.workload, &indices, &variant.name, self.metric);
                let Some(cell) = cell else { continue };
                let (left, right) = self.span(group, series);
                let corner = (right, cell.median * self.metric.scale());
                let bar = Rectangle::new([(left, 0.0), corner], color(series).filled());
                chart.draw_series([bar]).map_err(drawing)?;
                let whisker = self.whisker(cell, left, right);
                chart.draw_series(whisker).map_err(drawing)?;
                self.label(
                    area,
                    |value| chart.backend_coord(&(f64::midpoint(left, right), value)),
                    cell,
                )?;
            }
        }
        for group in 0..groups {
            let lines = self.references(panel, group);
            chart.draw_series(lines).map_err(drawing)?;
        }
        let place = |x: f64| chart.backend_coord(&(x, 0.0));
        self.captions(panel, area, groups, place)
    }

    fn indices(&self, panel: &Panel<'_>, group: usize) -> Vec<usize> {
        let first = (!self.scenario.matrix.is_empty()).then_some(group);
        first
            .into_iter()
            .chain(panel.rest.iter().copied())
            .collect()
    }

    /// Left and right edge of a bar.
    fn span(&self, group: usize, series: usize) -> (f64, f64) {
        let width = GROUP_WIDTH / self.scenario.variants.len() as f64;
        let left = group as f64 + (1.0 - GROUP_WIDTH) / 2.0 + series as f64 * width;
        (left + width * 0.06, left + width * 0.94)
    }

    /// Distance between the bars of a group, in pixels.
    fn pitch(&self, area: &Area<'_>) -> i32 {
        let groups = self
            .scenario
            .matrix
            .first()
            .map_or(1, |axis| axis.values.len());
        let bars = (groups * self.scenario.variants.len()).max(1);
        let width = f64::from(
            area.dim_in_pixel()
                .0
                .saturating_sub(AXIS_WIDTH + 2 * MARGIN),
        );
        (width * GROUP_WIDTH / bars as f64) as i32
    }

    /// Reference lines across the bars of a group.
    fn references(&self, panel: &Panel<'_>, group: usize) -> Vec<PathElement<(f64, f64)>> {
        let indices = self.indices(panel, group);
        let (left, right) = (group as f64 + 0.03, group as f64 + 0.97);
        let line = |(number, name): (usize, &str)| {
            let value = self
                .scenario
                .reference(self.metric, name, panel.workload, &indices)?
                * self.metric.scale();
            let ends = vec![(left, value), (right, value)];
            Some(PathElement::new(ends, line_style(number)))
        };
        let names = self.scenario.reference_names(self.metric);
        names.into_iter().enumerate().filter_map(line).collect()
    }

    /// Range of the runs, if there are several.
    fn whisker(&self, cell: &Cell, left: f64, right: f64) -> Vec<PathElement<(f64, f64)>> {
        if cell.values.len() < 2 {
            return Vec::new();
        }
        let (middle, cap) = (f64::midpoint(left, right), (right - left) * 0.2);
        let [low, high] = [cell.min, cell.max].map(|value| value * self.metric.scale());
        let lines = [
            [(middle, low), (middle, high)],
            [(middle - cap, low), (middle + cap, low)],
            [(middle - cap, high), (middle + cap, high)],
        ];
        lines
            .map(|line| PathElement::new(line.to_vec(), INK.stroke_width(1)))
            .into()
    }

    /// Median as a number above the bar and its whisker.
    fn label(
        &self,
        area: &Area<'_>,
        place: impl Fn(f64) -> (i32, i32),
        cell: &Cell,
    ) -> Result<(), FigureError> {
        let (x, y) = place(cell.max.max(cell.median) * self.metric.scale());
        let (left, top) = area.get_base_pixel();
        let words = significant(cell.median * self.metric.scale());
        let size = fitting(&words, self.pitch(area), MAX_LABEL);
        let anchor = (HPos::Center, VPos::Bottom);
        draw_text(
            area,
            &words,
            &text(size).color(&INK),
            (x - left, y - top - 3),
            anchor,
        )
    }

    /// Names of the groups, of their axis, and of the panel.
    fn captions(
        &self,
        panel: &Panel<'_>,
        area: &Area<'_>,
        groups: usize,
        place: impl Fn(f64) -> (i32, i32),
    ) -> Result<(), FigureError> {
        let (left, top) = area.get_base_pixel();
        let below = |x: f64, down: i32| {
            let (x, y) = place(x);
            (x - left, y - top + down)
        };
        let middle = (HPos::Center, VPos::Top);
        if let Some(axis) = self.scenario.matrix.first() {
            let values: Vec<_> = axis.values.iter().map(Setting::value).collect();
            let (ticks, common) = ticks(&values);
            let width = place(1.0).0 - place(0.0).0;
            let longest = ticks.iter().max_by_key(|tick| text_width(tick, TICK_MAX));
            let size = fitting(longest.map_or("", |tick| tick), width, TICK_MAX);
            for (group, tick) in ticks.iter().enumerate() {
                let at = below(group as f64 + 0.5, 8);
                draw_text(area, tick, &text(size).color(&INK), at, middle)?;
            }
            let at = below(groups as f64 / 2.0, 28);
            let name = [short(&axis.key)].into_iter().chain(common);
            let name = name.collect::<Vec<_>>().join(", ");
            draw_text(area, &name, &text(14).color(&FAINT), at, middle)?;
        }
        let rest = self.scenario.matrix.iter().skip(1).zip(&panel.rest);
        let rest = rest
            .map(|(axis, value)| format!(", {} {}", short(&axis.key), axis.values[*value].value()));
        let name = format!("{}{}", panel.workload, rest.collect::<String>());
        let style = text(16).style(FontStyle::Bold).color(&INK);
        draw_text(
            area,
            &name,
            &style,
            (below(0.0, 0).0, 10),
            (HPos::Left, VPos::Top),
        )
    }
}

/// Splits the values of an axis into their distinct parts, and the parts of `a=1,b=2` shared by
/// all.
fn ticks<'a>(values: &[&'a str]) -> (Vec<String>, Vec<&'a str>) {
    let parts = |value: &'a str| value.split(',');
    let shared = |part: &&str| {
        let everywhere = values
            .iter()
            .all(|value| parts(value).any(|other| other == *part));
        values.len() > 1 && part.contains('=') && everywhere
    };
    let own = |value: &&'a str| {
        let own: Vec<_> = parts(value).filter(|part| !shared(part)).collect();
        own.join(",")
    };
    let common = values.first().into_iter().flat_map(|value| parts(value));
    (
        values.iter().map(own).collect(),
        common.filter(shared).collect(),
    )
}

/// Largest text size at which neighbouring labels do not touch; the smallest size if none fits.
fn fitting(words: &str, pitch: i32, maximum: u32) -> u32 {
    let fits = |size: &u32| text_width(words, *size) < pitch;
    (MIN_LABEL..=maximum).rev().find(fits).unwrap_or(MIN_LABEL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_values_share_stands_once() {
        let (own, common) = ticks(&["p=0.4,i=40ms", "p=0.4,i=1100ms"]);
        assert_eq!(own, ["i=40ms", "i=1100ms"]);
        assert_eq!(common, ["p=0.4"]);
        let (own, common) = ticks(&["p=0.4,i=40ms", "p=0.1,i=40ms", "p=0.1,i=2s"]);
        assert_eq!(own, ["p=0.4,i=40ms", "p=0.1,i=40ms", "p=0.1,i=2s"]);
        assert!(common.is_empty());
        assert_eq!(ticks(&["p=0.4,i=40ms"]).0, ["p=0.4,i=40ms"]);
        assert_eq!(ticks(&["1%", "1%"]).0, ["1%", "1%"]);
    }

    #[test]
    fn words_shrink_until_they_fit() {
        assert_eq!(fitting("i=40ms", 100, 14), 14);
        let size = fitting("p=0.4,i=1100ms", 60, 14);
        assert!(size < 14 && text_width("p=0.4,i=1100ms", size) < 60);
        assert_eq!(fitting("p=0.4,i=1100ms", 1, 14), MIN_LABEL);
    }
}
