//! AVX2: 32 bytes at a time, two look-ups of four bits each.

use std::arch::x86_64::{
    __m128i, __m256i, _mm_loadu_si128, _mm256_and_si256, _mm256_broadcastsi128_si256,
    _mm256_loadu_si256, _mm256_set1_epi8, _mm256_setzero_si256, _mm256_shuffle_epi8,
    _mm256_srli_epi64, _mm256_storeu_si256, _mm256_xor_si256,
};

use super::{
    pass::{Group, Lanes, Overlapping, overlapping},
    tables::{NIBBLES, Nibbles},
};

pub(super) struct Avx2;

const WIDTH: usize = 32;

impl Lanes for Avx2 {
    type Table = Nibbles;

    fn tables() -> &'static [Nibbles; 256] {
        &NIBBLES
    }

    const LENGTH_MIN: usize = WIDTH;

    #[target_feature(enable = "avx2")]
    unsafe fn strips<const P: usize, const V: usize>(
        group: &Group<'_, Nibbles, P>,
        outputs: &mut [&mut [u8]; P],
    ) {
        // SAFETY: the caller's word.
        unsafe { overlapping::<Self, P, V>(group, outputs) };
    }
}

impl Overlapping for Avx2 {
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn strip<const P: usize, const V: usize>(
        group: &Group<'_, Nibbles, P>,
        at: usize,
        outputs: [*mut u8; P],
    ) {
        let mut sums = [[_mm256_setzero_si256(); V]; P];
        if group.accumulate {
            // SAFETY: the caller's word: there are V vectors in each output.
            sums = outputs.map(|output| unsafe { load(output) });
        }
        let nibble = _mm256_set1_epi8(0x0f);
        for (source, tables) in group.iter() {
            // SAFETY: the caller's word: the source has V vectors from `at` on.
            let bytes: [__m256i; V] = unsafe { load(source.as_ptr().add(at)) };
            let low = bytes.map(|bytes| _mm256_and_si256(bytes, nibble));
            let high = bytes.map(|bytes| _mm256_and_si256(_mm256_srli_epi64::<4>(bytes), nibble));
            for (sums, table) in sums.iter_mut().zip(tables) {
                let (table_low, table_high) = (twice(&table.low), twice(&table.high));
                for v in 0..V {
                    let low = _mm256_shuffle_epi8(table_low, low[v]);
                    let high = _mm256_shuffle_epi8(table_high, high[v]);
                    sums[v] = _mm256_xor_si256(sums[v], _mm256_xor_si256(low, high));
                }
            }
        }
        for (output, sums) in outputs.into_iter().zip(sums) {
            // SAFETY: the caller's word: there are V vectors in each output.
            unsafe { store(output, sums) };
        }
    }
}

/// Returns a table in both halves of a register.
#[target_feature(enable = "avx2")]
#[inline]
fn twice(table: &[u8; 16]) -> __m256i {
    // SAFETY: 16 bytes; nothing is asked of their alignment.
    _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(table.as_ptr().cast::<__m128i>()) })
}

/// # Safety
///
/// There are `V` vectors at `bytes`.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) unsafe fn load<const V: usize>(bytes: *const u8) -> [__m256i; V] {
    // SAFETY: the caller's word; nothing is aligned.
    std::array::from_fn(|v| unsafe { _mm256_loadu_si256(bytes.add(v * WIDTH).cast()) })
}

/// # Safety
///
/// There is room for `V` vectors at `bytes`.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) unsafe fn store<const V: usize>(bytes: *mut u8, vectors: [__m256i; V]) {
    for (v, vector) in vectors.into_iter().enumerate() {
        // SAFETY: the caller's word; nothing is aligned.
        unsafe { _mm256_storeu_si256(bytes.add(v * WIDTH).cast(), vector) };
    }
}
