//! Random numbers that mean the same next year.

use std::time::Duration;

use splitmix::{SplitMix64, mix};

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Rng(SplitMix64);

impl Rng {
    /// The stream of that number.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::new(mix(seed)))
    }

    /// True once in `1 / share` times.
    pub fn happens(&mut self, share: f64) -> bool {
        self.0.chance(share)
    }

    /// From `minimum` to `most`, both included; evenly.
    pub fn between(&mut self, minimum: u64, most: u64) -> u64 {
        minimum + self.0.below(most - minimum + 1)
    }

    /// From `minimum` to `most`, small values as often as large ones: evenly by their logarithm.
    pub fn scale(&mut self, minimum: f64, most: f64) -> f64 {
        minimum * (most / minimum).powf(self.0.unit())
    }

    /// A whole number from `minimum` to `most`, evenly by its logarithm.
    pub fn sized(&mut self, minimum: u64, most: u64) -> u64 {
        (self.scale((minimum + 1) as f64, (most + 2) as f64) as u64 - 1).clamp(minimum, most)
    }

    /// Up to `most`, evenly.
    pub fn time(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.between(0, most.as_nanos() as u64))
    }

    /// One of them.
    pub fn one<T: Clone>(&mut self, of: &[T]) -> T {
        self.0.one_of(of)
    }
}
