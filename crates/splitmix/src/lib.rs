//! SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014):
//! seeded pseudorandom numbers.
//!
//! Frozen: seeds of emulated links, of fec's channels and of tests must give the same numbers in
//! all versions. The crate has no dependencies, so that fec and boosters need no other crate of
//! this project.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

/// The increment of the state: 2^64 divided by the golden ratio, made odd.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes a value with a bijection: the first number of the sequence of `seed`.
#[inline]
pub const fn mix(seed: u64) -> u64 {
    let z = seed.wrapping_add(STEP);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns the number at an index, counted from 0, of the sequence of seed 0.
#[inline]
pub const fn nth(number: u64) -> u64 {
    mix(number.wrapping_mul(STEP))
}

/// A generator.
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Creates a generator from a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 bits.
    #[inline]
    pub const fn next_u64(&mut self) -> u64 {
        let number = mix(self.0);
        self.0 = self.0.wrapping_add(STEP);
        number
    }

    /// Returns a number below `end`; 0 if `end` is 0.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        self.next_u64() % end.max(1)
    }

    /// Returns a random element.
    ///
    /// # Panics
    /// When `all` is empty.
    pub fn one_of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize].clone()
    }

    /// Returns a number from 0 up to, not including, 1, with 53 bits.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns true with this probability.
    #[inline]
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Fills a slice with the low bytes of successive numbers.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        bytes.fill_with(|| self.next_u64() as u8);
    }

    /// Returns `len` bytes, as [`fill`](Self::fill).
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.fill(&mut bytes);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        // First outputs for the seeds 0 and 1234567 of the reference implementation
        // (https://prng.di.unimi.it/splitmix64.c).
        let first = [0xE220_A839_7B1D_CDAF, 0x6E78_9E6A_A1B9_65F4];
        assert_eq!([mix(0), mix(0x9E37_79B9_7F4A_7C15)], first);
        assert_eq!([nth(0), nth(1)], first);
        let mut numbers = SplitMix64::new(1_234_567);
        let numbers = [(); 3].map(|()| numbers.next_u64());
        let published = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(numbers, published);
    }

    #[test]
    fn what_is_made_of_a_number_is_frozen() {
        let numbers = || SplitMix64::new(0);
        assert_eq!(numbers().below(10), 0xE220_A839_7B1D_CDAF % 10);
        assert_eq!(numbers().below(0), 0);
        assert_eq!(numbers().one_of(&[1, 2, 3, 4]), 4);
        let unit = (0xE220_A839_7B1D_CDAF_u64 >> 11) as f64 * (-53f64).exp2();
        assert_eq!(numbers().unit(), unit);
        assert!(numbers().chance(unit + 1e-9) && !numbers().chance(unit));
        assert_eq!(numbers().bytes(2), [0xAF, 0xF4]);
    }
}
