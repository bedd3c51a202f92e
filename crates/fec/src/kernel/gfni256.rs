//! GFNI on registers of AVX2: 32 bytes at a time, one multiplication with a matrix of bits.

use std::arch::x86_64::{
    __m256i, _mm256_gf2p8affine_epi64_epi8, _mm256_set1_epi64x, _mm256_setzero_si256,
    _mm256_xor_si256,
};

use super::{
    avx2::{load, store},
    pass::{Group, Lanes, Overlapping, overlapping},
    tables::MATRICES,
};

pub(super) struct Gfni256;

impl Lanes for Gfni256 {
    type Table = u64;

    fn tables() -> &'static [u64; 256] {
        &MATRICES
    }

    const LENGTH_MIN: usize = 32;

    #[target_feature(enable = "avx2,gfni")]
    unsafe fn strips<const P: usize, const V: usize>(
        group: &Group<'_, u64, P>,
        outputs: &mut [&mut [u8]; P],
    ) {
        // SAFETY: the caller's word.
        unsafe { overlapping::<Self, P, V>(group, outputs) };
    }
}

impl Overlapping for Gfni256 {
    #[target_feature(enable = "avx2,gfni")]
    #[inline]
    unsafe fn strip<const P: usize, const V: usize>(
        group: &Group<'_, u64, P>,
        at: usize,
        outputs: [*mut u8; P],
    ) {
        let mut sums = [[_mm256_setzero_si256(); V]; P];
        if group.accumulate {
            // SAFETY: the caller's word: there are V vectors in each output.
            sums = outputs.map(|output| unsafe { load(output) });
        }
        for (source, matrices) in group.iter() {
            // SAFETY: the caller's word: the source has V vectors from `at` on.
            let bytes: [__m256i; V] = unsafe { load(source.as_ptr().add(at)) };
            for (sums, matrix) in sums.iter_mut().zip(matrices) {
                let matrix = _mm256_set1_epi64x(*matrix as i64);
                for v in 0..V {
                    let product = _mm256_gf2p8affine_epi64_epi8::<0>(bytes[v], matrix);
                    sums[v] = _mm256_xor_si256(sums[v], product);
                }
            }
        }
        for (output, sums) in outputs.into_iter().zip(sums) {
            // SAFETY: the caller's word: there are V vectors in each output.
            unsafe { store(output, sums) };
        }
    }
}
