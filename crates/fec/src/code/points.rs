//! The matrix of the block code as values of a polynomial.
//!
//! The code is Reed and Solomon's in its systematic form: the k data symbols are the values that a
//! polynomial of degree k - 1 takes at the points 0 to k - 1, and row i of the overcode is its
//! value at the point k + i. Interpolating from any k of these values gives any other. So each
//! coefficient is a quotient of products of differences (Lagrange), no matrix is inverted, and a
//! row does not depend on how many rows there are. It is the matrix of reed-solomon-erasure, which
//! multiplies a Vandermonde matrix with the inverse of its upper part.

use crate::gf256::Product;

/// The products that all interpolations over `k` data symbols share.
#[derive(Clone, Debug)]
pub(super) struct Points {
    k: usize,
    /// For each of the 256 points, the product of its differences to the data points but itself.
    to_data: [Product; 256],
}

impl Points {
    /// `k` is at most 256.
    pub(super) fn new(k: usize) -> Self {
        let to_data = std::array::from_fn(|point| {
            differences(point as u8, (0..k as u16).map(|data| data as u8))
        });
        Self { k, to_data }
    }

    /// Writes the k coefficients of the data symbols in row `row` of the overcode.
    pub(super) fn row(&self, row: usize, coefficients: &mut [u8]) {
        let point = (self.k + row) as u8;
        let all = self.to_data[point as usize];
        for (data, coefficient) in coefficients[..self.k].iter_mut().enumerate() {
            let others = all.over(point ^ data as u8);
            *coefficient = others.over_product(self.to_data[data]).value();
        }
    }

    /// Writes the coefficients of the symbols at `known` in each of the `lost` data symbols, lost
    /// by lost. `known` are k points: all data points but the lost ones, then as many others.
    pub(super) fn interpolate(&self, known: &[u8], lost: &[u8], coefficients: &mut [u8]) {
        let spare = &known[self.k - lost.len()..];
        // What takes the product of differences to the data points to that to the known points.
        let to_known = |point: u8| {
            let all = self.to_data[point as usize].times_product(differences(point, spare));
            all.over_product(differences(point, lost))
        };
        for (&lost, coefficients) in lost.iter().zip(coefficients.chunks_exact_mut(self.k)) {
            let all = to_known(lost);
            for (&known, coefficient) in known.iter().zip(coefficients) {
                let others = all.over(lost ^ known);
                *coefficient = others.over_product(to_known(known)).value();
            }
        }
    }
}

/// The product of the differences of `point` to `others`, itself left out.
fn differences(
    point: u8,
    others: impl IntoIterator<Item = impl std::borrow::Borrow<u8>>,
) -> Product {
    others
        .into_iter()
        .map(|other| point ^ *std::borrow::Borrow::borrow(&other))
        .filter(|difference| *difference != 0)
        .fold(Product::ONE, Product::times)
}
