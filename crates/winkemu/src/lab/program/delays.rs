//! Statistics of delays.

use serde::Serialize;

/// Delays in seconds, beyond the links' one-way delay.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Delays {
    /// Mean.
    pub mean_s: f64,
    /// Median.
    pub p50_s: f64,
    /// 95th percentile.
    pub p95_s: f64,
    /// 99th percentile.
    pub p99_s: f64,
    /// Maximum.
    pub max_s: f64,
}

impl Delays {
    /// Computes the statistics, and sorts the delays; `None` if there are none.
    pub(super) fn from_seconds(seconds: &mut [f64]) -> Option<Self> {
        seconds.sort_by(f64::total_cmp);
        let count = seconds.len();
        let max_s = *seconds.last()?;
        let quantile = |q: f64| seconds[((count as f64 * q).ceil() as usize).clamp(1, count) - 1];
        Some(Self {
            mean_s: seconds.iter().sum::<f64>() / count as f64,
            p50_s: quantile(0.5),
            p95_s: quantile(0.95),
            p99_s: quantile(0.99),
            max_s,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_what_so_many_take_at_most() {
        let mut seconds: Vec<_> = (1..=200).rev().map(f64::from).collect();
        let delays = Delays::from_seconds(&mut seconds).unwrap();
        let expected = Delays {
            mean_s: 100.5,
            p50_s: 100.0,
            p95_s: 190.0,
            p99_s: 198.0,
            max_s: 200.0,
        };
        assert_eq!(delays, expected);
        assert_eq!(Delays::from_seconds(&mut [7.0]).unwrap().p50_s, 7.0);
        assert_eq!(Delays::from_seconds(&mut []), None);
    }
}
