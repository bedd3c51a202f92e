//! NEON: 16 bytes at a time, two look-ups of four bits each.

use std::arch::aarch64::{
    uint8x16_t, vandq_u8, vdupq_n_u8, veorq_u8, vld1q_u8, vqtbl1q_u8, vshrq_n_u8, vst1q_u8,
};

use super::{
    pass::{Group, Lanes, Overlapping, overlapping},
    tables::{NIBBLES, Nibbles},
};

pub(super) struct Neon;

const WIDTH: usize = 16;

impl Lanes for Neon {
    type Table = Nibbles;

    fn tables() -> &'static [Nibbles; 256] {
        &NIBBLES
    }

    const LENGTH_MIN: usize = WIDTH;

    #[target_feature(enable = "neon")]
    unsafe fn strips<const P: usize, const V: usize>(
        group: &Group<'_, Nibbles, P>,
        outputs: &mut [&mut [u8]; P],
    ) {
        // SAFETY: the caller's word.
        unsafe { overlapping::<Self, P, V>(group, outputs) };
    }
}

impl Overlapping for Neon {
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn strip<const P: usize, const V: usize>(
        group: &Group<'_, Nibbles, P>,
        at: usize,
        outputs: [*mut u8; P],
    ) {
        let mut sums = [[vdupq_n_u8(0); V]; P];
        if group.accumulate {
            // SAFETY: the caller's word: there are V vectors in each output.
            sums = outputs.map(|output| unsafe { load(output) });
        }
        let nibble = vdupq_n_u8(0x0f);
        for (source, tables) in group.iter() {
            // SAFETY: the caller's word: the source has V vectors from `at` on.
            let bytes: [uint8x16_t; V] = unsafe { load(source.as_ptr().add(at)) };
            let low = bytes.map(|bytes| vandq_u8(bytes, nibble));
            let high = bytes.map(|bytes| vshrq_n_u8::<4>(bytes));
            for (sums, table) in sums.iter_mut().zip(tables) {
                // SAFETY: a table is a vector.
                let table_low = unsafe { vld1q_u8(table.low.as_ptr()) };
                // SAFETY: a table is a vector.
                let table_high = unsafe { vld1q_u8(table.high.as_ptr()) };
                for v in 0..V {
                    let low = vqtbl1q_u8(table_low, low[v]);
                    let high = vqtbl1q_u8(table_high, high[v]);
                    sums[v] = veorq_u8(sums[v], veorq_u8(low, high));
                }
            }
        }
        for (output, sums) in outputs.into_iter().zip(sums) {
            for (v, sum) in sums.into_iter().enumerate() {
                // SAFETY: the caller's word: there are V vectors in each output.
                unsafe { vst1q_u8(output.add(v * WIDTH), sum) };
            }
        }
    }
}

/// # Safety
///
/// There are `V` vectors at `bytes`.
#[target_feature(enable = "neon")]
#[inline]
unsafe fn load<const V: usize>(bytes: *const u8) -> [uint8x16_t; V] {
    // SAFETY: the caller's word; nothing is aligned.
    std::array::from_fn(|v| unsafe { vld1q_u8(bytes.add(v * WIDTH)) })
}
