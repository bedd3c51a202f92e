//! Random numbers that stay the same across versions.

use std::time::Duration;

use splitmix::{SplitMix64, mix};

/// Stream of random numbers.
#[derive(Clone, Debug)]
pub struct Rng(SplitMix64);

impl Rng {
    /// Creates the stream of that seed.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::new(mix(seed)))
    }

    /// Returns true once in `1 / share` times.
    pub fn happens(&mut self, share: f64) -> bool {
        self.0.chance(share)
    }

    /// Draws uniformly from `minimum` to `most`, both included.
    pub fn between(&mut self, minimum: u64, most: u64) -> u64 {
        minimum + self.0.below(most - minimum + 1)
    }

    /// Draws from `minimum` to `most`, uniformly by the logarithm.
    pub fn scale(&mut self, minimum: f64, most: f64) -> f64 {
        minimum * (most / minimum).powf(self.0.unit())
    }

    /// Draws a whole number from `minimum` to `most`, uniformly by the logarithm.
    pub fn sized(&mut self, minimum: u64, most: u64) -> u64 {
        (self.scale((minimum + 1) as f64, (most + 2) as f64) as u64 - 1).clamp(minimum, most)
    }

    /// Draws a time up to `most`, uniformly.
    pub fn time(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.between(0, most.as_nanos() as u64))
    }

    /// Draws one of the values.
    pub fn one<T: Clone>(&mut self, of: &[T]) -> T {
        self.0.one_of(of)
    }
}
