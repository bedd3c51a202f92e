//! Figures beside what they should be.

use comfy_table::{Table, presets::ASCII_MARKDOWN};
use serde::Serialize;

/// Something measured, and what it should be.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// What was measured.
    pub name: String,
    /// What came out.
    pub measured: f64,
    /// What was expected; a bound where there is no `most`.
    pub expected: f64,
    /// Least and most that will do, as shares of what was expected; `None` where the figure is
    /// only shown.
    pub accepted: Option<(f64, f64)>,
}

impl Figure {
    /// A figure that should be within `tolerance` of the expected, as a share of it.
    pub fn within(name: String, measured: f64, expected: f64, tolerance: f64) -> Self {
        let accepted = Some((1.0 - tolerance, 1.0 + tolerance));
        Self {
            name,
            measured,
            expected,
            accepted,
        }
    }

    /// A figure that should be at least this share of the expected.
    pub fn at_least(name: String, measured: f64, expected: f64, share: f64) -> Self {
        Self {
            name,
            measured,
            expected,
            accepted: Some((share, f64::INFINITY)),
        }
    }

    /// A figure that is shown for comparison.
    pub fn shown(name: String, measured: f64, expected: f64) -> Self {
        Self {
            name,
            measured,
            expected,
            accepted: None,
        }
    }

    /// Measured to expected.
    pub fn ratio(&self) -> f64 {
        self.measured / self.expected
    }

    /// Whether it is what it should be.
    pub fn is_met(&self) -> bool {
        self.accepted
            .is_none_or(|(least, most)| (least..=most).contains(&self.ratio()))
    }

    fn verdict(&self) -> &'static str {
        match (self.accepted, self.is_met()) {
            (None, _) => "",
            (Some(_), true) => "met",
            (Some(_), false) => "MISSED",
        }
    }
}

/// Figures as a table.
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
