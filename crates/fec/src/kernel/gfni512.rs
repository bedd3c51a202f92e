//! GFNI on registers of AVX-512: 64 bytes at a time, one multiplication with a matrix of bits, and
//! the products of two sources added in one instruction.
//!
//! Masks handle any length, so that no strip overlaps another.

use std::arch::x86_64::{
    __m512i, _mm512_gf2p8affine_epi64_epi8, _mm512_loadu_si512, _mm512_mask_storeu_epi8,
    _mm512_maskz_loadu_epi8, _mm512_set1_epi64, _mm512_setzero_si512, _mm512_storeu_si512,
    _mm512_ternarylogic_epi32, _mm512_xor_si512,
};

use super::{
    pass::{Group, Lanes},
    tables::MATRICES,
};

pub(super) struct Gfni512;

const WIDTH: usize = 64;

/// Truth table of a sum of three.
const XOR3: i32 = 0x96;

impl Lanes for Gfni512 {
    type Table = u64;

    fn tables() -> &'static [u64; 256] {
        &MATRICES
    }

    const LENGTH_MIN: usize = 0;

    #[target_feature(enable = "avx512f,avx512bw,gfni")]
    unsafe fn strips<const P: usize, const V: usize>(
        group: &Group<'_, u64, P>,
        outputs: &mut [&mut [u8]; P],
    ) {
        let length = outputs[0].len();
        let starts = outputs.each_mut().map(|output| output.as_mut_ptr());
        let mut at = 0;
        while at + V * WIDTH <= length {
            // SAFETY: the caller's word: sources and outputs are of that length, so the strip is
            // whole.
            unsafe { strip::<P, V, true>(group, at, length, starts) };
            at += V * WIDTH;
        }
        if at + (V - 1) * WIDTH < length {
            // SAFETY: as above, where it need not be whole.
            unsafe { strip::<P, V, false>(group, at, length, starts) };
            at += V * WIDTH;
        }
        while at < length {
            // SAFETY: as above.
            unsafe { strip::<P, 1, false>(group, at, length, starts) };
            at += WIDTH;
        }
    }
}

/// Makes one strip of `P` outputs, `V` vectors from byte `at` on: all of them if it is `WHOLE`,
/// else as far as there are bytes. Masks, even of all ones, cost an instruction more for each
/// vector read, and some CPUs write slowly with them.
///
/// # Safety
///
/// The machine has the instructions, sources and outputs are of `length` bytes, and if the strip is
/// `WHOLE`, it ends there at the latest.
#[target_feature(enable = "avx512f,avx512bw,gfni")]
#[inline]
unsafe fn strip<const P: usize, const V: usize, const WHOLE: bool>(
    group: &Group<'_, u64, P>,
    at: usize,
    length: usize,
    outputs: [*mut u8; P],
) {
    let masks: [u64; V] = std::array::from_fn(|v| mask(length.saturating_sub(at + v * WIDTH)));
    let mut sums = [[_mm512_setzero_si512(); V]; P];
    if group.accumulate {
        // SAFETY: the caller's word, and the masks are for what there is.
        sums = outputs.map(|output| unsafe { load::<V, WHOLE>(output, at, masks) });
    }
    let mut sources = group.iter();
    while let Some((source, matrices)) = sources.next() {
        // SAFETY: as above.
        let bytes = unsafe { load::<V, WHOLE>(source.as_ptr(), at, masks) };
        let Some((second, second_matrices)) = sources.next() else {
            for (sums, matrix) in sums.iter_mut().zip(matrices) {
                let products = multiply(bytes, *matrix);
                for v in 0..V {
                    sums[v] = _mm512_xor_si512(sums[v], products[v]);
                }
            }
            break;
        };
        // SAFETY: as above.
        let second = unsafe { load::<V, WHOLE>(second.as_ptr(), at, masks) };
        for p in 0..P {
            let products = multiply(bytes, *matrices[p]);
            let second = multiply(second, *second_matrices[p]);
            for v in 0..V {
                sums[p][v] = _mm512_ternarylogic_epi32::<XOR3>(sums[p][v], products[v], second[v]);
            }
        }
    }
    for (output, sums) in outputs.into_iter().zip(sums) {
        for v in 0..V {
            let place = output.wrapping_add(at + v * WIDTH);
            // SAFETY: the caller's word, and the mask is for what there is.
            unsafe {
                if WHOLE {
                    _mm512_storeu_si512(place.cast(), sums[v]);
                } else {
                    _mm512_mask_storeu_epi8(place.cast(), masks[v], sums[v]);
                }
            }
        }
    }
}

/// Returns the mask of the first `bytes` of a vector.
fn mask(bytes: usize) -> u64 {
    if bytes >= WIDTH {
        u64::MAX
    } else {
        (1 << bytes) - 1
    }
}

#[target_feature(enable = "avx512f,avx512bw,gfni")]
#[inline]
fn multiply<const V: usize>(bytes: [__m512i; V], matrix: u64) -> [__m512i; V] {
    let matrix = _mm512_set1_epi64(matrix as i64);
    bytes.map(|bytes| _mm512_gf2p8affine_epi64_epi8::<0>(bytes, matrix))
}

/// # Safety
///
/// The bytes that `masks` select can be read from byte `at` of `bytes` on, and `WHOLE` vectors in
/// full. The rest is not touched.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn load<const V: usize, const WHOLE: bool>(
    bytes: *const u8,
    at: usize,
    masks: [u64; V],
) -> [__m512i; V] {
    std::array::from_fn(|v| {
        let place = bytes.wrapping_add(at + v * WIDTH);
        // SAFETY: the caller's word.
        unsafe {
            if WHOLE {
                _mm512_loadu_si512(place.cast())
            } else {
                _mm512_maskz_loadu_epi8(masks[v], place.cast())
            }
        }
    })
}
