//! The code on our own kernel.

use super::{CodeError, ErasureCode, SYMBOLS_MAX, points::Points};
use crate::kernel::Kernel;

/// The systematic Reed-Solomon code, computed by a [`Kernel`].
#[derive(Clone, Debug)]
pub struct ReedSolomon {
    kernel: Kernel,
    coefficients: Vec<u8>,
}

impl ReedSolomon {
    /// Computed by the fastest kernel of this machine.
    #[must_use]
    pub fn new() -> Self {
        Self::with_kernel(Kernel::detect())
    }

    /// Computed by `kernel`.
    #[must_use]
    pub fn with_kernel(kernel: Kernel) -> Self {
        Self {
            kernel,
            coefficients: Vec::new(),
        }
    }
}

impl Default for ReedSolomon {
    fn default() -> Self {
        Self::new()
    }
}

impl ErasureCode for ReedSolomon {
    fn encode(
        &mut self,
        data: &[&[u8]],
        first_row: usize,
        rows: &mut [&mut [u8]],
    ) -> Result<(), CodeError> {
        let k = data.len();
        let symbols = k + first_row + rows.len();
        let length = data.first().ok_or(CodeError::NoData)?.len();
        if symbols > SYMBOLS_MAX {
            return Err(CodeError::TooManySymbols(symbols));
        }
        if data.iter().any(|data| data.len() != length)
            || rows.iter().any(|row| row.len() != length)
        {
            return Err(CodeError::Lengths);
        }
        let points = Points::new(k);
        self.coefficients.resize(k * rows.len(), 0);
        for (i, coefficients) in self.coefficients.chunks_exact_mut(k).enumerate() {
            points.row(first_row + i, coefficients);
        }
        self.kernel.combine(&self.coefficients, data, rows);
        Ok(())
    }

    fn decode(
        &mut self,
        k: usize,
        received: &[(u8, &[u8])],
        lost: &[u8],
        restored: &mut [&mut [u8]],
    ) -> Result<(), CodeError> {
        if k == 0 {
            return Err(CodeError::NoData);
        }
        if received.len() < k {
            let received = received.len();
            return Err(CodeError::TooFew { received, k });
        }
        // Of the others only as many as data symbols are missing, so that all lost ones can be
        // computed whichever of them are asked for.
        let mut symbols: [&[u8]; SYMBOLS_MAX] = [&[]; SYMBOLS_MAX];
        let mut known = [0; SYMBOLS_MAX];
        let data = received
            .iter()
            .filter(|(number, _)| usize::from(*number) < k);
        let rows = received
            .iter()
            .filter(|(number, _)| usize::from(*number) >= k);
        for (place, (number, symbol)) in data.chain(rows).take(k).enumerate() {
            known[place] = *number;
            symbols[place] = symbol;
        }
        let points = Points::new(k);
        self.coefficients.resize(k * lost.len(), 0);
        points.interpolate(&known[..k], lost, &mut self.coefficients);
        self.kernel
            .combine(&self.coefficients, &symbols[..k], restored);
        Ok(())
    }
}
