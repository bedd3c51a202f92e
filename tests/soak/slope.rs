//! Growth of a series, and the noise around it.

/// Straight line through the second half of a series (least squares). The first half is warm-up.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// Value at the beginning of the half.
    pub begin: f64,
    /// Value at its end.
    pub end: f64,
    /// Growth in a day of real time.
    pub per_day: f64,
    /// Most growth that is noise: three standard errors or more, or the allowance. A series without
    /// an allowance has none.
    pub noise: f64,
}

impl Line {
    /// Fits points of seconds and values.
    ///
    /// # Panics
    /// With fewer than six points.
    pub fn fit(points: &[(f64, f64)], allowance: f64) -> Self {
        assert!(points.len() >= 6, "too few samples: {}", points.len());
        let half = &points[points.len() / 2..];
        let count = half.len() as f64;
        let sum = |of: &dyn Fn(f64, f64) -> f64| half.iter().map(|(x, y)| of(*x, *y)).sum::<f64>();
        let (x, y) = (sum(&|x, _| x) / count, sum(&|_, y| y) / count);
        let spread = sum(&|at, _| (at - x).powi(2));
        let slope = sum(&|at, value| (at - x) * (value - y)) / spread;
        let squares = sum(&|at, value| (value - y - slope * (at - x)).powi(2));
        // Beyond so many errors is one of a thousand values by Student's distribution.
        let errors = f64::from(allowance > 0.0) * (3.0 + 20.0 / (count - 2.0));
        let error = (squares / (count - 2.0) / spread).sqrt();
        let (first, last) = (half[0].0, points[points.len() - 1].0);
        Self {
            begin: y + slope * (first - x),
            end: y + slope * (last - x),
            per_day: slope * 86_400.0,
            noise: allowance.max(errors * error * (last - first)),
        }
    }

    /// Returns whether the growth is more than noise. Rounding is none.
    pub fn grows(&self) -> bool {
        self.end - self.begin > self.noise + 1e-6
    }
}

#[cfg(test)]
mod tests {
    use splitmix::SplitMix64;

    use super::*;

    /// A hundred samples, one each ten seconds, with noise of up to 500 around a value.
    fn noisy(seed: u64, value: impl Fn(f64) -> f64) -> Line {
        let mut random = SplitMix64::new(seed);
        let times = (0..100).map(|number| f64::from(number) * 10.0);
        let points = times.map(|time| (time, value(time) + random.below(1001) as f64 - 500.0));
        Line::fit(&points.collect::<Vec<_>>(), 300.0)
    }

    #[test]
    fn a_planted_leak_is_found() {
        for seed in 0..100 {
            // 20 per sample, so 1000 in the half.
            let line = noisy(seed, |time| 5000.0 + 2.0 * time);
            assert!(line.grows() && line.per_day > 86_400.0, "{seed}: {line:?}");
        }
        let exact = |slope| [0.0, 1.0, 2.0, 3.0, 4.0, 5.0].map(|x| (x, slope * x));
        assert!(Line::fit(&exact(1.0), 1.0).grows());
        assert!(!Line::fit(&exact(0.0), 0.0).grows());
        let rare = [
            (0.0, 2.0),
            (1.0, 2.0),
            (2.0, 2.0),
            (3.0, 2.0),
            (4.0, 2.0),
            (5.0, 3.0),
        ];
        assert!(Line::fit(&rare, 0.0).grows());
    }

    #[test]
    fn noise_and_warm_up_are_no_leak() {
        for seed in 0..100 {
            let constant = noisy(seed, |_| 5000.0);
            let warming = noisy(seed, |time| 10.0 * time.min(490.0));
            let falling = noisy(seed, |time| -time);
            for line in [constant, warming, falling] {
                assert!(!line.grows(), "{seed}: {line:?}");
            }
        }
    }
}
