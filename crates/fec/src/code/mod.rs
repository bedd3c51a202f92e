//! Block erasure codes: k data symbols, and as many rows of overcode as wanted, any k of which give
//! the data back.

mod backend;
mod matrices;
mod numbers;
mod points;
mod reed_solomon;
#[cfg(feature = "reference")]
mod reference;
mod shape;
#[cfg(test)]
mod tests;

pub use backend::{Backend, UnknownBackend};
pub use reed_solomon::ReedSolomon;
#[cfg(feature = "reference")]
pub use reference::Reference;

/// The most symbols of a block, data and overcode together: GF(2^8) has no more points.
pub const SYMBOLS_MAX: usize = 256;

/// A systematic erasure code over symbols of one length. Data symbols are numbered from 0 to k - 1
/// and rows of overcode from k on.
pub trait ErasureCode {
    /// Computes the rows `first_row`, `first_row + 1`, ... of the overcode of `data`. A row does
    /// not depend on which others are asked for, so more can be had later.
    ///
    /// # Errors
    ///
    /// If there is no data, more than [`SYMBOLS_MAX`] symbols, or the lengths differ. The rows are
    /// then untouched.
    fn encode(
        &mut self,
        data: &[&[u8]],
        first_row: usize,
        rows: &mut [&mut [u8]],
    ) -> Result<(), CodeError>;

    /// Computes the data symbols `lost` of a block of `k`, in this order, from the symbols
    /// `received`: pairs of number and content, k or more, the lost ones not among them, in any
    /// order. Others may be lost too.
    ///
    /// # Errors
    ///
    /// If fewer than k symbols are there, a number occurs twice or is out of range, the lengths
    /// differ, or there are not as many places as lost symbols. The output is then untouched.
    fn decode(
        &mut self,
        k: usize,
        received: &[(u8, &[u8])],
        lost: &[u8],
        restored: &mut [&mut [u8]],
    ) -> Result<(), CodeError>;
}

/// One that is chosen at run time ([`Backend::code`]).
impl<C: ErasureCode + ?Sized> ErasureCode for Box<C> {
    fn encode(
        &mut self,
        data: &[&[u8]],
        first_row: usize,
        rows: &mut [&mut [u8]],
    ) -> Result<(), CodeError> {
        (**self).encode(data, first_row, rows)
    }

    fn decode(
        &mut self,
        k: usize,
        received: &[(u8, &[u8])],
        lost: &[u8],
        restored: &mut [&mut [u8]],
    ) -> Result<(), CodeError> {
        (**self).decode(k, received, lost, restored)
    }
}

/// Why a block cannot be coded. All of these are mistakes of the caller, who should check what
/// came from a network first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodeError {
    /// A block has at least one data symbol.
    #[error("a block without data")]
    NoData,
    /// GF(2^8) has 256 points, one for each symbol.
    #[error("{0} symbols in a block, of 256 at most")]
    TooManySymbols(usize),
    /// All symbols of a block are of one length; the caller pads them.
    #[error("symbols of different lengths in a block")]
    Lengths,
    /// Each lost symbol needs a place to be restored to.
    #[error("{restored} places for {lost} lost symbols")]
    Places {
        /// How many symbols are asked for.
        lost: usize,
        /// How many places there are.
        restored: usize,
    },
    /// As many symbols are needed as there are data symbols.
    #[error("{received} symbols of a block that needs {k}")]
    TooFew {
        /// How many there are.
        received: usize,
        /// How many are needed.
        k: usize,
    },
    /// A symbol occurs twice, a lost one is not one of the data, or has been received.
    #[error("symbol {0} given twice, or out of range")]
    Number(u8),
}
