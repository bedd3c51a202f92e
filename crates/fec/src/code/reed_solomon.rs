//! The code on this crate's kernels.

use super::{CodeError, ErasureCode, SYMBOLS_MAX, matrices::Matrices, points, shape};
use crate::kernel::Kernel;

/// The systematic Reed-Solomon code, computed by a [`Kernel`].
///
/// It caches the coefficients of all rows that it has computed: for blocks of k symbols, k bytes
/// for each row. That is 20 KB for all k up to 50 with half as many rows, and cannot exceed 2.8 MB.
/// It also caches those of the last few patterns of loss. After that, coding allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct ReedSolomon {
    kernel: Kernel,
    /// Coefficients of the rows 0, 1, ... computed so far, by k.
    rows: Vec<Vec<u8>>,
    matrices: Matrices,
}

impl ReedSolomon {
    /// Returns a code on the fastest kernel of this machine.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a code on `kernel`.
    #[must_use]
    pub fn with_kernel(kernel: Kernel) -> Self {
        Self {
            kernel,
            ..Self::default()
        }
    }

    /// Coefficients of the first `rows` rows over `k` data symbols.
    fn coefficients(&mut self, k: usize, rows: usize) -> &[u8] {
        if self.rows.len() <= k {
            self.rows.resize_with(k + 1, Vec::new);
        }
        let coefficients = &mut self.rows[k];
        let before = coefficients.len();
        if before < rows * k {
            coefficients.resize(rows * k, 0);
            for (i, row) in coefficients[before..].chunks_exact_mut(k).enumerate() {
                points::row(before / k + i, row);
            }
        }
        &coefficients[..rows * k]
    }
}

impl ErasureCode for ReedSolomon {
    fn encode(
        &mut self,
        data: &[&[u8]],
        first_row: usize,
        rows: &mut [&mut [u8]],
    ) -> Result<(), CodeError> {
        shape::check_encode(data, first_row, rows)?;
        let (kernel, k) = (self.kernel, data.len());
        let coefficients = self.coefficients(k, first_row + rows.len());
        kernel.combine(&coefficients[first_row * k..], data, rows);
        Ok(())
    }

    fn decode(
        &mut self,
        k: usize,
        received: &[(u8, &[u8])],
        lost: &[u8],
        restored: &mut [&mut [u8]],
    ) -> Result<(), CodeError> {
        let present = shape::check_decode(k, received, lost, restored)?;
        if lost.is_empty() {
            return Ok(());
        }
        let mut places = [0; SYMBOLS_MAX];
        for (place, (number, _)) in received.iter().enumerate() {
            places[usize::from(*number)] = place as u8;
        }
        // The data present, then as many rows as data is missing, independent of the rows available
        // and of the symbols wanted.
        let known = present.first(k);
        let mut list = [0; SYMBOLS_MAX];
        let list = known.list(&mut list);
        let mut symbols: [&[u8]; SYMBOLS_MAX] = [&[]; SYMBOLS_MAX];
        for (symbol, number) in symbols.iter_mut().zip(list) {
            *symbol = received[usize::from(places[usize::from(*number)])].1;
        }
        let coefficients = self.matrices.get(&known, list, lost);
        self.kernel.combine(coefficients, &symbols[..k], restored);
        Ok(())
    }
}
