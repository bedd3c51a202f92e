//! Test helpers: random numbers from seeds that a failure prints and `FEC_SEED` sets.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use splitmix::SplitMix64;

/// Random numbers. A seed always gives the same ones.
#[derive(Clone, Debug)]
pub(crate) struct Draw(SplitMix64);

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number from 0 to `end - 1`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }

    /// Returns a number from `first` to `last`.
    pub(crate) fn between(&mut self, first: usize, last: usize) -> usize {
        first + self.below(last - first + 1)
    }

    /// Returns a number from 0 up to, not including, 1.
    pub(crate) fn unit(&mut self) -> f64 {
        self.0.unit()
    }

    /// Returns true with this probability.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        self.0.chance(probability)
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill(bytes);
    }
}

/// Seed to use: `FEC_SEED` if set, else `default`.
#[expect(clippy::disallowed_methods, reason = "tests may read settings")]
pub(crate) fn seed(default: u64) -> u64 {
    let seed = std::env::var("FEC_SEED").ok();
    seed.map_or(default, |seed| seed.parse().expect("FEC_SEED is a number"))
}

/// Runs a test with the seeds from 0 to `count - 1`, or with `FEC_SEED` alone if set. Prints the
/// seed of a failure.
pub(crate) fn for_seeds(count: u64, test: impl Fn(&mut Draw)) {
    let alone = seed(u64::MAX);
    let seeds = if alone == u64::MAX {
        0..count
    } else {
        alone..alone + 1
    };
    for seed in seeds {
        let run = || test(&mut Draw::new(seed));
        if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
            eprintln!("failed with FEC_SEED={seed}");
            resume_unwind(panic);
        }
    }
}
