//! One byte at a time.

use crate::gf256;

pub(super) fn combine(coefficients: &[u8], sources: &[&[u8]], outputs: &mut [&mut [u8]]) {
    for (i, output) in outputs.iter_mut().enumerate() {
        output.fill(0);
        for (j, source) in sources.iter().enumerate() {
            let coefficient = coefficients[i * sources.len() + j];
            for (out, byte) in output.iter_mut().zip(*source) {
                *out ^= gf256::mul(coefficient, *byte);
            }
        }
    }
}
