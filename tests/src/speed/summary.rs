//! Median and range of a few repetitions.

use std::fmt;

use serde::Serialize;

/// Median, minimum and maximum of the repetitions of one measurement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Summary {
    /// The middle value, or the mean of the two in the middle.
    pub median: f64,
    /// The minimum.
    pub min: f64,
    /// The maximum.
    pub max: f64,
}

impl Summary {
    /// Summarises a list of one or more values.
    ///
    /// # Panics
    /// When the list is empty.
    pub fn from_values(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        Self {
            median: median_of_sorted(&sorted),
            min: sorted[0],
            max: sorted[sorted.len() - 1],
        }
    }

    /// Summarises `combine` over pairs: values of the same round belong together.
    ///
    /// # Panics
    /// When the lists are empty.
    pub fn of_pairs(left: &[f64], right: &[f64], combine: impl Fn(f64, f64) -> f64) -> Self {
        let pairs = left.iter().zip(right);
        Self::from_values(&pairs.map(|(l, r)| combine(*l, *r)).collect::<Vec<_>>())
    }
}

impl fmt::Display for Summary {
    /// Formats `12.3 (11.9..12.8)`, with digits according to the median's size.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = match self.median.abs() {
            x if x >= 100.0 => 0,
            x if x >= 10.0 => 1,
            x if x >= 1.0 => 2,
            _ => 3,
        };
        let Self { median, min, max } = self;
        write!(f, "{median:.digits$} ({min:.digits$}..{max:.digits$})")
    }
}

/// Returns the median of unsorted nanoseconds, in microseconds.
///
/// # Panics
/// When the list is empty.
pub(super) fn median_us(nanoseconds: &mut [u64]) -> f64 {
    nanoseconds.sort_unstable();
    nanoseconds[nanoseconds.len() / 2] as f64 / 1000.0
}

fn median_of_sorted(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(Summary::from_values(&[3.0, 1.0, 2.0]).median, 2.0);
        assert_eq!(Summary::from_values(&[4.0, 1.0, 2.0, 3.0]).median, 2.5);
    }

    #[test]
    fn the_range_is_minimum_and_maximum() {
        let summary = Summary::from_values(&[3.0, 1.0, 2.0]);
        assert_eq!((summary.min, summary.max), (1.0, 3.0));
        assert_eq!(summary.to_string(), "2.00 (1.00..3.00)");
    }

    #[test]
    fn pairs_are_combined_before_the_median_is_taken() {
        let ratio = Summary::of_pairs(&[1.0, 8.0, 3.0], &[2.0, 4.0, 3.0], |a, b| a / b);
        assert_eq!((ratio.median, ratio.min, ratio.max), (1.0, 0.5, 2.0));
    }
}
