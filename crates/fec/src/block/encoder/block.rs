//! A block of the encoder: copies of its packets, and the rows computed from them.

use std::array;

use crate::{
    code::{ErasureCode, SYMBOLS_MAX},
    symbol::{self, LENGTH_BYTES},
};

/// A block. Reused for further blocks, so that its memory is allocated once.
#[derive(Debug, Default)]
pub(super) struct Block {
    /// Packets as symbols of `stride` bytes; bytes after a packet may be of an earlier one.
    symbols: Vec<u8>,
    stride: usize,
    /// Length of each symbol without its padding.
    lengths: Vec<usize>,
    /// Longest of these, the length of all symbols of the block.
    length: usize,
    /// Rows computed last, up to `computed`.
    rows: Vec<u8>,
    /// End of the computed rows.
    computed: usize,
    /// Next row to send.
    next: usize,
    /// End of the rows that are sent or due.
    due: usize,
    /// Number of rows due when the block closed.
    overhead: usize,
}

impl Block {
    /// Drops the old contents, and returns the number of rows still due.
    pub(super) fn open(&mut self) -> usize {
        let dropped = self.due - self.next;
        self.lengths.clear();
        self.length = 0;
        (self.computed, self.next, self.due, self.overhead) = (0, 0, 0, 0);
        dropped
    }

    /// Stores a copy of a packet, which is one of `k` of up to `payload_max` bytes, and returns its
    /// index.
    pub(super) fn push(&mut self, packet: &[u8], k: usize, payload_max: usize) -> u8 {
        self.stride = LENGTH_BYTES + payload_max;
        self.symbols.resize(k * self.stride, 0);
        let index = self.lengths.len();
        symbol::write(packet, &mut self.symbols[index * self.stride..]);
        self.lengths.push(LENGTH_BYTES + packet.len());
        self.length = self.length.max(LENGTH_BYTES + packet.len());
        index as u8
    }

    pub(super) fn packets(&self) -> usize {
        self.lengths.len()
    }

    pub(super) fn overhead(&self) -> usize {
        self.overhead
    }

    /// Pads the packets to the longest, and makes `overhead` rows due.
    pub(super) fn close(&mut self, overhead: usize) {
        let symbols = self.symbols.chunks_exact_mut(self.stride);
        for (symbol, length) in symbols.zip(&self.lengths) {
            symbol[*length..self.length].fill(0);
        }
        self.overhead = overhead;
        self.due = overhead;
    }

    /// Makes up to `rows` more rows due, and returns their number.
    pub(super) fn grant(&mut self, rows: usize) -> usize {
        let granted = rows.min(SYMBOLS_MAX - self.packets() - self.due);
        self.due += granted;
        granted
    }

    /// Returns the next row that is due, and its number.
    pub(super) fn next_row(&mut self, code: &mut impl ErasureCode) -> (usize, &[u8]) {
        if self.next == self.computed {
            self.compute(code);
        }
        let length = self.length;
        let from_end = self.computed - self.next;
        let row = self.next;
        self.next += 1;
        (
            row,
            &self.rows[self.rows.len() - from_end * length..][..length],
        )
    }

    pub(super) fn memory(&self) -> usize {
        self.symbols.capacity() + self.rows.capacity()
    }

    /// Computes all rows that are due at once, so that the packets are read only once.
    fn compute(&mut self, code: &mut impl ErasureCode) {
        let (packets, length) = (self.packets(), self.length);
        let rows = self.due - self.next;
        let mut sources: [&[u8]; SYMBOLS_MAX] = [&[]; SYMBOLS_MAX];
        for (source, symbol) in sources
            .iter_mut()
            .zip(self.symbols.chunks_exact(self.stride))
        {
            *source = &symbol[..length];
        }
        self.rows.resize(rows * length, 0);
        let mut chunks = self.rows.chunks_exact_mut(length);
        let mut outputs: [&mut [u8]; SYMBOLS_MAX] =
            array::from_fn(|_| chunks.next().unwrap_or_default());
        code.encode(&sources[..packets], self.next, &mut outputs[..rows])
            .expect("packets of one length, not more rows than there are");
        self.computed = self.due;
    }
}
