//! Pseudo-random generator TinyMT32 of RFC 8682, with the parameters fixed there.

const MAT1: u32 = 0x8f70_11ee;
const MAT2: u32 = 0xfc78_ff1f;
const TMAT: u32 = 0x3793_fdff;

/// Steps of the recurrence that are skipped at the start; as many mix the seed in before.
const WARM_UP: u32 = 8;

/// State: 127 bits of a recurrence that is linear over GF(2).
#[derive(Clone, Debug)]
pub(super) struct TinyMt32([u32; 4]);

impl TinyMt32 {
    /// `tinymt32_init` of RFC 8682.
    pub(super) fn new(seed: u32) -> Self {
        let mut state = [seed, MAT1, MAT2, TMAT];
        for i in 1..WARM_UP {
            let before = state[(i as usize - 1) & 3];
            let mixed = (before ^ (before >> 30)).wrapping_mul(1_812_433_253);
            state[i as usize & 3] ^= mixed.wrapping_add(i);
        }
        let mut generator = Self(state);
        for _ in 0..WARM_UP {
            generator.step();
        }
        generator
    }

    fn step(&mut self) {
        let [s0, s1, s2, mut y] = self.0;
        let mut x = (s0 & 0x7fff_ffff) ^ s1 ^ s2;
        x ^= x << 1;
        y ^= (y >> 1) ^ x;
        let odd = 0u32.wrapping_sub(y & 1);
        self.0 = [s1, s2 ^ (odd & MAT1), x ^ (y << 10) ^ (odd & MAT2), y];
    }

    /// `tinymt32_generate_uint32` of RFC 8682.
    pub(super) fn draw(&mut self) -> u32 {
        self.step();
        let [s0, _, s2, s3] = self.0;
        let sum = s0.wrapping_add(s2 >> 8);
        s3 ^ sum ^ (0u32.wrapping_sub(sum & 1) & TMAT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first 50 values of seed 1, the criterion of RFC 8682, section 2.3.
    #[test]
    fn the_values_of_the_standard() {
        let mut generator = TinyMt32::new(1);
        let expected = [
            2_545_341_989,
            981_918_433,
            3_715_302_833,
            2_387_538_352,
            3_591_001_365,
            3_820_442_102,
            2_114_400_566,
            2_196_103_051,
            2_783_359_912,
            764_534_509,
            643_179_475,
            1_822_416_315,
            881_558_334,
            4_207_026_366,
            3_690_273_640,
            3_240_535_687,
            2_921_447_122,
            3_984_931_427,
            4_092_394_160,
            44_209_675,
            2_188_315_343,
            2_908_663_843,
            1_834_519_336,
            3_774_670_961,
            3_019_990_707,
            4_065_554_902,
            1_239_765_502,
            4_035_716_197,
            3_412_127_188,
            552_822_483,
            161_364_450,
            353_727_785,
            140_085_994,
            149_132_008,
            2_547_770_827,
            4_064_042_525,
            4_078_297_538,
            2_057_335_507,
            622_384_752,
            2_041_665_899,
            2_193_913_817,
            1_080_849_512,
            33_160_901,
            662_956_935,
            642_999_063,
            3_384_709_977,
            1_723_175_122,
            3_866_752_252,
            521_822_317,
            2_292_524_454,
        ];
        assert_eq!(expected.map(|_| generator.draw()), expected);
    }
}
