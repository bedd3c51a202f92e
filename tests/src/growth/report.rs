//! Measured figures and their expected values.

use comfy_table::{Table, presets::ASCII_MARKDOWN};
use serde::Serialize;

/// A measured figure and its expected value.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// The name.
    pub name: String,
    /// The measured value.
    pub measured: f64,
    /// The expected value; the minimum where `accepted` has no upper bound.
    pub expected: f64,
    /// The accepted range, as shares of the expected value; `None` where the figure is only shown.
    pub accepted: Option<(f64, f64)>,
}

impl Figure {
    /// Returns a figure that should be within `tolerance` of the expected, as a share of it.
    pub fn within(name: String, measured: f64, expected: f64, tolerance: f64) -> Self {
        let accepted = Some((1.0 - tolerance, 1.0 + tolerance));
        Self {
            name,
            measured,
            expected,
            accepted,
        }
    }

    /// Returns a figure with a minimum, as a share of the expected.
    pub fn at_least(name: String, measured: f64, expected: f64, share: f64) -> Self {
        Self {
            name,
            measured,
            expected,
            accepted: Some((share, f64::INFINITY)),
        }
    }

    /// Returns a figure that is shown for comparison.
    pub fn shown(name: String, measured: f64, expected: f64) -> Self {
        Self {
            name,
            measured,
            expected,
            accepted: None,
        }
    }

    /// Returns the ratio of measured to expected.
    pub fn ratio(&self) -> f64 {
        self.measured / self.expected
    }

    /// Returns whether the figure is in its range.
    pub fn is_met(&self) -> bool {
        self.accepted
            .is_none_or(|(minimum, most)| (minimum..=most).contains(&self.ratio()))
    }

    fn verdict(&self) -> &'static str {
        match (self.accepted, self.is_met()) {
            (None, _) => "",
            (Some(_), true) => "met",
            (Some(_), false) => "MISSED",
        }
    }
}

/// Formats figures as a table.
pub fn table(figures: &[Figure]) -> String {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN);
    table.set_header(["measurement", "measured", "expected", "ratio", ""]);
    for figure in figures {
        table.add_row([
            figure.name.clone(),
            format!("{:.1}", figure.measured),
            format!("{:.1}", figure.expected),
            format!("{:.3}", figure.ratio()),
            figure.verdict().to_owned(),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_met_within_its_bounds_only() {
        let within = |measured| Figure::within(String::new(), measured, 100.0, 0.1).is_met();
        assert!(within(91.0) && within(109.0));
        assert!(!within(89.0) && !within(111.0));
        let at_least = |measured| Figure::at_least(String::new(), measured, 100.0, 0.8).is_met();
        assert!(at_least(80.0) && at_least(500.0) && !at_least(79.0));
        assert!(!at_least(f64::NAN));
    }
}
