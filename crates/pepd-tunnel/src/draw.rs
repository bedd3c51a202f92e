//! Chance, from a seed, for tests.

/// SplitMix64.
#[derive(Debug, Clone)]
pub(super) struct Draw(u64);

impl Draw {
    pub(super) fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    /// Below that, which is more than 0.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % end
    }

    /// One of these.
    pub(super) fn one_of<const N: usize>(&mut self, all: [u64; N]) -> u64 {
        all[self.below(N as u64) as usize]
    }

    /// Below one of these.
    pub(super) fn below_one_of<const N: usize>(&mut self, ends: [u64; N]) -> u64 {
        let end = self.one_of(ends);
        self.below(end)
    }
}
