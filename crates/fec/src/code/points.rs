//! Matrix of the block code as values of a polynomial.
//!
//! The code is Reed and Solomon's in its systematic form. The k data symbols are the values of a
//! polynomial of degree k - 1 at the points 0 to k - 1, and row i is its value at the point k + i.
//! Interpolation from any k of these values gives any other. With known points x, and W(p) the
//! product of the differences of p to all of them but itself, the value at p is the sum of
//!
//! ```text
//!               W(p)
//!     value(x) --------------
//!              (p - x) W(x)
//! ```
//!
//! (Lagrange). So a row does not depend on the number of rows, and decoding needs no matrix
//! inversion. The product of the inverse of the e x e part for e lost symbols and the rest of the
//! matrix has a closed form. It takes 2 e k look-ups for all W and one for each coefficient, where
//! an elimination takes e^3 + e^2 k.
//!
//! The matrix equals that of reed-solomon-erasure, which multiplies a Vandermonde matrix with the
//! inverse of its upper part.

use super::SYMBOLS_MAX;
use crate::gf256::Product;

/// For k = 0, 1, ... and each point, the product of its differences to the points 0 to k - 1 but
/// itself. 64 KiB computed by the compiler, so that only the pages in use take memory.
static TO_DATA: [[Product; 256]; SYMBOLS_MAX + 1] = products();

const fn products() -> [[Product; 256]; SYMBOLS_MAX + 1] {
    let mut products = [[Product::ONE; 256]; SYMBOLS_MAX + 1];
    let mut k = 0;
    while k < SYMBOLS_MAX {
        let mut point = 0;
        while point < 256 {
            let difference = Product::new((point ^ k) as u8);
            products[k + 1][point] = products[k][point].times(difference);
            point += 1;
        }
        k += 1;
    }
    products
}

/// Writes the coefficients of the k data symbols in repair symbol `row`, where k is the length of
/// `coefficients`.
pub(super) fn row(row: usize, coefficients: &mut [u8]) {
    let k = coefficients.len();
    let to_data = &TO_DATA[k];
    let point = (k + row) as u8;
    for (data, coefficient) in coefficients.iter_mut().enumerate() {
        let difference = Product::new(point ^ data as u8);
        *coefficient = to_data[usize::from(point)].value_over(to_data[data], difference);
    }
}

/// Writes the coefficients of the symbols at the points `known` in each of the `wanted` data
/// symbols, one after the other. The k known points are all data points but `missing`, then as many
/// others; the wanted ones are missing.
pub(super) fn interpolate(known: &[u8], missing: &[u8], wanted: &[u8], coefficients: &mut [u8]) {
    let k = known.len();
    let rows = &known[k - missing.len()..];
    // From the differences to all data points to those to the known points.
    let to_known = |point: u8| {
        let to_rows = Product::of_all(rows.iter().map(|row| point ^ row));
        let to_missing = Product::of_all(missing.iter().map(|missing| point ^ missing));
        TO_DATA[k][usize::from(point)]
            .times(to_rows)
            .over(to_missing)
    };
    let mut each = [Product::ONE; SYMBOLS_MAX];
    for (each, known) in each.iter_mut().zip(known) {
        *each = to_known(*known);
    }
    for (wanted, coefficients) in wanted.iter().zip(coefficients.chunks_exact_mut(k)) {
        let all = to_known(*wanted);
        for ((known, to_known), coefficient) in known.iter().zip(&each).zip(coefficients) {
            *coefficient = all.value_over(*to_known, Product::new(wanted ^ known));
        }
    }
}
