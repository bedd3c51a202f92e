//! The code by the crate reed-solomon-erasure, as a reference.

use std::ops::RangeInclusive;

use reed_solomon_erasure::galois_8;

use super::{CodeError, ErasureCode, SYMBOLS_MAX, shape};

/// Block code, computed by the crate `reed-solomon-erasure`.
///
/// Slower, and allocates. It is a reference for [`ReedSolomon`](super::ReedSolomon), and a fallback
/// in case of doubt. For the last k it caches the matrices of 254 patterns of loss, k^2 bytes each:
/// 100 KB for k = 20, and 16 MB at most.
#[derive(Debug, Default)]
pub struct Reference {
    /// Matrix of the last k and number of rows; a new one takes k^3 steps.
    code: Option<galois_8::ReedSolomon>,
}

/// The arguments were checked against all errors of the other crate.
const CHECKED: &str = "arguments that have been checked";

impl Reference {
    /// Returns a code without a matrix yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a code for blocks of `k` data symbols, 1 or more, with a number of rows of this
    /// range. A new code has the first.
    fn code(&mut self, k: usize, rows: RangeInclusive<usize>) -> &galois_8::ReedSolomon {
        let fits = |code: &galois_8::ReedSolomon| {
            code.data_shard_count() == k && rows.contains(&code.parity_shard_count())
        };
        let code = self.code.take().filter(fits);
        self.code.insert(
            code.unwrap_or_else(|| galois_8::ReedSolomon::new(k, *rows.start()).expect(CHECKED)),
        )
    }
}

impl ErasureCode for Reference {
    fn encode(
        &mut self,
        data: &[&[u8]],
        first_row: usize,
        rows: &mut [&mut [u8]],
    ) -> Result<(), CodeError> {
        shape::check_encode(data, first_row, rows)?;
        let length = data[0].len();
        if length == 0 || rows.is_empty() {
            return Ok(());
        }
        // The crate computes all rows from the first on.
        let mut before = vec![vec![0; length]; first_row];
        let before = before.iter_mut().map(Vec::as_mut_slice);
        let mut all: Vec<&mut [u8]> = before
            .chain(rows.iter_mut().map(|row| &mut **row))
            .collect();
        let code = self.code(data.len(), all.len()..=all.len());
        code.encode_sep(data, &mut all).expect(CHECKED);
        Ok(())
    }

    fn decode(
        &mut self,
        k: usize,
        received: &[(u8, &[u8])],
        lost: &[u8],
        restored: &mut [&mut [u8]],
    ) -> Result<(), CodeError> {
        shape::check_decode(k, received, lost, restored)?;
        let length = received[0].1.len();
        if length == 0 || lost.is_empty() {
            return Ok(());
        }
        // As data is lost, one or more of the k or more symbols are rows.
        let numbers = received.iter().map(|(number, _)| usize::from(*number));
        let symbols = numbers.max().expect(CHECKED) + 1;
        // A code of more rows serves as well: which rows have come differs from block to block.
        let code = self.code(k, symbols - k..=SYMBOLS_MAX);
        let mut block: Vec<Option<Vec<u8>>> = vec![None; code.total_shard_count()];
        for (number, symbol) in received {
            block[usize::from(*number)] = Some(symbol.to_vec());
        }
        code.reconstruct_data(&mut block).expect(CHECKED);
        for (number, restored) in lost.iter().zip(restored) {
            restored.copy_from_slice(block[usize::from(*number)].as_ref().expect(CHECKED));
        }
        Ok(())
    }
}
