//! Block erasure codes: k data symbols and any number of repair symbols (rows), any k of which
//! restore the data.

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

/// Maximum number of symbols of a block, data and repair together: GF(2^8) has no more points.
pub const SYMBOLS_MAX: usize = 256;

/// A systematic erasure code over symbols of one length. Data symbols have the numbers 0 to k - 1,
/// and rows (repair symbols) follow from k on.
pub trait ErasureCode: std::fmt::Debug {
    /// Computes the rows `first_row`, `first_row + 1`, ... of `data`. A row does not depend on
    /// other rows, so that more can be computed later.
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
    /// `received`. These are pairs of number and content, k or more, without the lost ones, in any
    /// order. Other symbols may be lost too.
    ///
    /// # Errors
    ///
    /// If fewer than k symbols are given, a number occurs twice or is out of range, the lengths
    /// differ, or there are not as many places as lost symbols. The output is then untouched.
    fn decode(
        &mut self,
        k: usize,
        received: &[(u8, &[u8])],
        lost: &[u8],
        restored: &mut [&mut [u8]],
    ) -> Result<(), CodeError>;
}

/// A code chosen at run time ([`Backend::code`]).
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

/// Reason why a block cannot be coded. All are mistakes of the caller, who should first check data
/// from a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodeError {
    /// No data symbol; a block has one or more.
    #[error("a block without data")]
    NoData,
    /// Too many symbols: GF(2^8) has 256 points, one for each symbol.
    #[error("{0} symbols in a block, of 256 at most")]
    TooManySymbols(usize),
    /// Symbols of different lengths; the caller pads them.
    #[error("symbols of different lengths in a block")]
    Lengths,
    /// Each lost symbol needs a place for the restored one.
    #[error("{restored} places for {lost} lost symbols")]
    Places {
        /// Number of lost symbols.
        lost: usize,
        /// Number of places.
        restored: usize,
    },
    /// Too few symbols: a block needs as many as it has data symbols.
    #[error("{received} symbols of a block that needs {k}")]
    TooFew {
        /// Number of symbols received.
        received: usize,
        /// Number of symbols needed.
        k: usize,
    },
    /// A symbol occurs twice, or a lost one is not a data symbol, or was received.
    #[error("symbol {0} given twice, or out of range")]
    Number(u8),
}
