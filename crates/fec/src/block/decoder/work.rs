//! Blocks in work: the packets that are kept of them.

use super::{super::bits::Bits, pool::Pool};
use crate::symbol::{self, LENGTH_BYTES};

/// The packets of one block. Opened and closed again and again, so that memory is taken once.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// The block's number, and when it was begun; `None` if there is none.
    begun: Option<(u32, u64)>,
    kept: Vec<Kept>,
    rows: Bits,
    /// The length of its repair symbols; 0 while unknown.
    symbol: usize,
    /// The longest of its data packets as a symbol.
    longest: usize,
}

/// A packet as a symbol in a buffer.
#[derive(Clone, Copy, Debug)]
struct Kept {
    number: u8,
    buffer: u32,
    /// Without padding.
    length: u32,
}

/// The index of a data packet, or row of a repair packet.
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

    /// Forgets the block and its packets.
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

    /// Whether a data packet of this length fits into the block's symbols.
    pub(super) fn fits_data(&self, length: usize) -> bool {
        self.symbol == 0 || LENGTH_BYTES + length <= self.symbol
    }

    /// Whether a repair symbol of this length fits to the other packets.
    pub(super) fn fits_repair(&self, length: usize) -> bool {
        (self.symbol == 0 || length == self.symbol) && self.longest <= length
    }

    pub(super) fn has_row(&self, number: u8) -> bool {
        self.rows.contains(number)
    }

    /// Keeps a packet that fits and is not there yet in `buffer`.
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

    /// Pads all packets, and writes them as what a code takes into `symbols`. Returns how long
    /// they are.
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
