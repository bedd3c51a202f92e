//! Restored packets, until they are fetched.

use std::array;

use crate::{code::SYMBOLS_MAX, symbol};

/// The lost packets of one block.
#[derive(Debug, Default)]
pub(super) struct Restored {
    symbols: Vec<u8>,
    length: usize,
    block: u32,
    indices: Vec<u8>,
    fetched: usize,
}

impl Restored {
    /// Drops the old contents, and makes room for the symbols of the packets `lost`, of `length`
    /// bytes each.
    pub(super) fn begin(&mut self, block: u32, lost: &[u8], length: usize) {
        self.clear();
        (self.block, self.length) = (block, length);
        self.indices.extend_from_slice(lost);
        self.symbols.resize(lost.len() * length, 0);
    }

    /// Places for the symbols; empty ones after the last.
    pub(super) fn outputs(&mut self) -> [&mut [u8]; SYMBOLS_MAX] {
        let mut chunks = self.symbols.chunks_exact_mut(self.length);
        array::from_fn(|_| chunks.next().unwrap_or_default())
    }

    /// Reports whether all symbols are such as an encoder makes: a possible length, and zeros after
    /// the packet.
    pub(super) fn sensible(&self) -> bool {
        self.symbols.chunks_exact(self.length).all(|symbol| {
            symbol::read(symbol).is_some_and(|packet| {
                let padding = &symbol[symbol::LENGTH_BYTES + packet.len()..];
                padding.iter().all(|byte| *byte == 0)
            })
        })
    }

    pub(super) fn clear(&mut self) {
        self.indices.clear();
        self.fetched = 0;
    }

    /// Number of packets not fetched yet.
    pub(super) fn waiting(&self) -> usize {
        self.indices.len() - self.fetched
    }

    /// Returns block, index and content of the next packet.
    pub(super) fn fetch(&mut self) -> Option<(u32, u8, &[u8])> {
        let index = *self.indices.get(self.fetched)?;
        let symbol = &self.symbols[self.fetched * self.length..][..self.length];
        self.fetched += 1;
        Some((self.block, index, symbol::read(symbol)?))
    }

    pub(super) fn memory(&self) -> usize {
        self.symbols.capacity()
    }
}
