//! Stored packets of blocks in work.

use super::{super::bits::Bits, pool::Pool};
use crate::symbol::{self, LENGTH_BYTES};

/// Packets of one block. Reused for further blocks, so that memory is allocated once.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// Number and start of the block; `None` if there is none.
    begun: Option<(u32, u64)>,
    kept: Vec<Kept>,
    rows: Bits,
    /// Length of its repair symbols; 0 while unknown.
    symbol: usize,
    /// Length of its longest data packet as a symbol.
    longest: usize,
}

/// A packet stored as a symbol in a buffer.
#[derive(Clone, Copy, Debug)]
struct Kept {
    number: u8,
    buffer: u32,
    /// Length without padding.
    length: u32,
}

/// Index of a data packet, or row of a repair packet.
#[derive(Clone, Copy)]
pub(super) enum Number {
    Data(u8),
    /// Counted from k on.
    Row(u8),
}

impl Work {
    pub(super) fn begin(&mut self, block: u32, order: u64) {
        self.begun = Some((block, order));
    }

    /// Drops the block and its packets.
    pub(super) fn end(&mut self, pool: &mut Pool) {
        for kept in self.kept.drain(..) {
            pool.give_back(kept.buffer);
        }
        self.begun = None;
        self.rows = Bits::EMPTY;
        (self.symbol, self.longest) = (0, 0);
    }

    pub(super) fn begun(&self) -> Option<(u32, u64)> {
        self.begun
    }

    pub(super) fn packets(&self) -> usize {
        self.kept.len()
    }

    /// Reports whether a data packet of this length fits into the block's symbols.
    pub(super) fn fits_data(&self, length: usize) -> bool {
        self.symbol == 0 || LENGTH_BYTES + length <= self.symbol
    }

    /// Reports whether a repair symbol of this length fits the other packets.
    pub(super) fn fits_repair(&self, length: usize) -> bool {
        (self.symbol == 0 || length == self.symbol) && self.longest <= length
    }

    pub(super) fn has_row(&self, number: u8) -> bool {
        self.rows.contains(number)
    }

    /// Stores a new packet that fits in `buffer`.
    pub(super) fn keep(&mut self, number: Number, packet: &[u8], buffer: u32, pool: &mut Pool) {
        let into = pool.get_mut(buffer);
        let (number, length) = match number {
            Number::Data(index) => {
                symbol::write(packet, into);
                let length = LENGTH_BYTES + packet.len();
                self.longest = self.longest.max(length);
                (index, length)
            }
            Number::Row(number) => {
                into[..packet.len()].copy_from_slice(packet);
                self.rows.insert(number);
                self.symbol = packet.len();
                (number, packet.len())
            }
        };
        self.kept.push(Kept {
            number,
            buffer,
            length: length as u32,
        });
    }

    /// Pads all packets, and writes them into `symbols` in the form for a code. Returns their
    /// length.
    pub(super) fn symbols<'a>(&self, pool: &'a mut Pool, symbols: &mut [(u8, &'a [u8])]) -> usize {
        for kept in &self.kept {
            pool.get_mut(kept.buffer)[kept.length as usize..self.symbol].fill(0);
        }
        let pool: &'a Pool = pool;
        for (kept, symbol) in self.kept.iter().zip(symbols) {
            *symbol = (kept.number, &pool.get(kept.buffer)[..self.symbol]);
        }
        self.symbol
    }
}
