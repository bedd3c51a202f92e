//! What tests have in common: random numbers from seeds that a failure prints and `FEC_SEED` gives
//! back.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Random numbers (SplitMix64). The same seed gives the same ones for ever.
#[derive(Clone, Debug)]
pub(crate) struct Draw(u64);

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to `end - 1`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }

    /// From `first` to `last`.
    pub(crate) fn between(&mut self, first: usize, last: usize) -> usize {
        first + self.below(last - first + 1)
    }

    /// From 0 up to, not including, 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (-53f64).exp2()
    }

    /// With this probability.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            *byte = self.next() as u8;
        }
    }
}

/// The seed to use: `FEC_SEED` if that is set, else `default`.
#[expect(clippy::disallowed_methods, reason = "tests may read settings")]
pub(crate) fn seed(default: u64) -> u64 {
    let seed = std::env::var("FEC_SEED").ok();
    seed.map_or(default, |seed| seed.parse().expect("FEC_SEED is a number"))
}

/// Runs a test with the seeds from 0 to `count - 1`, or with `FEC_SEED` alone if that is set. The
/// seed of a failure is printed.
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
