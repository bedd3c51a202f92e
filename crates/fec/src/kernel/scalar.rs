//! Kernel without vectors: eight outputs at a time, as the eight bytes of a number.
//!
//! For each source two small tables have its products with all eight coefficients, by a byte's
//! lower and upper four bits. So two look-ups and two sums process a byte of a source for eight
//! outputs.

use crate::gf256;

/// Outputs at a time: as many as a number has bytes.
const OUTPUTS: usize = 8;

/// Bytes of each string at a time.
const BYTES: usize = 8;

/// Sources with tables at the same time, which take 4 KiB.
const SOURCES: usize = 16;

/// Products with eight coefficients, by the value of four bits.
type Products = [u64; 16];

/// Sets each output to its linear combination of the sources, or adds that to it. There are a
/// coefficient for each pair of an output and a source, and one source or more; all strings are of
/// one length.
pub(super) fn combine(
    coefficients: &[u8],
    sources: &[&[u8]],
    outputs: &mut [&mut [u8]],
    accumulate: bool,
) {
    let rows = coefficients.chunks(OUTPUTS * sources.len());
    for (outputs, rows) in outputs.chunks_mut(OUTPUTS).zip(rows) {
        for (number, group) in sources.chunks(SOURCES).enumerate() {
            let mut tables = [[[0; 16]; 2]; SOURCES];
            for (j, tables) in tables[..group.len()].iter_mut().enumerate() {
                let column = rows[number * SOURCES + j..].iter().step_by(sources.len());
                *tables = products(column.copied());
            }
            add(&tables, group, outputs, accumulate || number > 0);
        }
    }
}

/// Returns the tables of a source by its coefficients in the outputs.
fn products(column: impl Iterator<Item = u8>) -> [Products; 2] {
    let mut tables = [[0; 16]; 2];
    for (i, coefficient) in column.enumerate() {
        for bit in 0..8 {
            let product = gf256::mul(coefficient, 1 << bit);
            tables[bit / 4][1 << (bit % 4)] |= u64::from(product) << (8 * i);
        }
    }
    for table in &mut tables {
        for value in 1..16_usize {
            let rest = value & (value - 1);
            table[value] = table[rest] ^ table[value ^ rest];
        }
    }
    tables
}

/// Computes the sums, eight bytes of all outputs at a time.
fn add(
    tables: &[[Products; 2]; SOURCES],
    sources: &[&[u8]],
    outputs: &mut [&mut [u8]],
    accumulate: bool,
) {
    for at in (0..outputs[0].len()).step_by(BYTES) {
        let mut sums = [0; BYTES];
        for (source, [low, high]) in sources.iter().zip(tables) {
            for (sum, byte) in sums.iter_mut().zip(bytes(&source[at..])) {
                *sum ^= low[usize::from(byte & 15)] ^ high[usize::from(byte >> 4)];
            }
        }
        for (i, output) in outputs.iter_mut().enumerate() {
            let mut sum = u64::from_le_bytes(sums.map(|sum| sum.to_le_bytes()[i]));
            if accumulate {
                sum ^= u64::from_le_bytes(bytes(&output[at..]));
            }
            match output[at..].first_chunk_mut() {
                Some(output) => *output = sum.to_le_bytes(),
                None => (output[at..].iter_mut().zip(sum.to_le_bytes()))
                    .for_each(|(output, byte)| *output = byte),
            }
        }
    }
}

/// Returns the next eight bytes, padded with zeros.
fn bytes(string: &[u8]) -> [u8; BYTES] {
    string.first_chunk().copied().unwrap_or_else(|| {
        let mut bytes = [0; BYTES];
        bytes[..string.len()].copy_from_slice(string);
        bytes
    })
}
