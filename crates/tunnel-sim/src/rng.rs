//! Random numbers that mean the same next year.

use std::time::Duration;

/// The finaliser of splitmix64: a bijection whose values look random.
pub const fn mix(value: u64) -> u64 {
    let z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A stream of random numbers (splitmix64).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The stream of that number.
    pub fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// Any 64 bits.
    pub fn bits(&mut self) -> u64 {
        let value = mix(self.0);
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        value
    }

    /// From 0 to below 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// True once in `1 / share` times.
    pub fn happens(&mut self, share: f64) -> bool {
        self.unit() < share
    }

    /// From `least` to `most`, both included; evenly.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.bits() % (most - least + 1)
    }

    /// From `least` to `most`, small values as often as large ones: evenly by their logarithm.
    pub fn scale(&mut self, least: f64, most: f64) -> f64 {
        least * (most / least).powf(self.unit())
    }

    /// A whole number from `least` to `most`, evenly by its logarithm.
    pub fn sized(&mut self, least: u64, most: u64) -> u64 {
        (self.scale((least + 1) as f64, (most + 2) as f64) as u64 - 1).clamp(least, most)
    }

    /// Up to `most`, evenly.
    pub fn time(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.between(0, most.as_nanos() as u64))
    }

    /// One of them.
    pub fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.between(0, of.len() as u64 - 1) as usize].clone()
    }
}
