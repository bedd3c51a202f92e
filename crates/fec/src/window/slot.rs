//! Storage for one symbol, reused.

use crate::symbol::{self, LENGTH_BYTES};

/// A symbol, padded with zeros to the longest symbol of its code.
#[derive(Clone, Debug, Default)]
pub(super) struct Slot {
    bytes: Box<[u8]>,
    /// Bytes in use; all after them are zero.
    used: usize,
}

impl Slot {
    /// Returns an empty slot, for packets of up to `packet_max` bytes.
    pub(super) fn new(packet_max: usize) -> Self {
        Self {
            bytes: vec![0; LENGTH_BYTES + packet_max].into_boxed_slice(),
            used: 0,
        }
    }

    /// Stores a packet, behind its length.
    pub(super) fn set_packet(&mut self, packet: &[u8]) {
        let used = LENGTH_BYTES + packet.len();
        symbol::write(packet, &mut self.bytes[..used]);
        self.zero_from(used);
    }

    /// Stores a symbol.
    pub(super) fn set_symbol(&mut self, symbol: &[u8]) {
        self.bytes[..symbol.len()].copy_from_slice(symbol);
        self.zero_from(symbol.len());
    }

    /// Returns room for a symbol of `length` bytes, to be written in full.
    pub(super) fn room(&mut self, length: usize) -> &mut [u8] {
        self.zero_from(length);
        &mut self.bytes[..length]
    }

    /// Bytes of the symbol without padding.
    pub(super) fn symbol(&self) -> &[u8] {
        &self.bytes[..self.used]
    }

    /// Returns `length` bytes of the symbol and its padding.
    pub(super) fn padded(&self, length: usize) -> &[u8] {
        &self.bytes[..length]
    }

    /// Returns the packet in the slot, if its length is valid.
    pub(super) fn packet(&self) -> Option<&[u8]> {
        symbol::read(self.symbol())
    }

    /// Takes the written bytes as a packet with its padding. Returns whether it is one: a valid
    /// length, and nothing but zeros after it.
    pub(super) fn trim(&mut self) -> bool {
        let Some(packet) = self.packet() else {
            return false;
        };
        let used = LENGTH_BYTES + packet.len();
        let padded = self.bytes[used..self.used].iter().all(|byte| *byte == 0);
        if padded {
            // Otherwise zeros behind the packet would stay in use.
            self.used = used;
        }
        padded
    }

    fn zero_from(&mut self, used: usize) {
        if used < self.used {
            self.bytes[used..self.used].fill(0);
        }
        self.used = used;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behind_what_turned_out_to_be_no_packet_nothing_is_left() {
        let mut slot = Slot::new(10);
        slot.room(12).fill(1);
        slot.bytes[..2].copy_from_slice(&[0, 3]);
        assert!(!slot.trim(), "its padding is not zero");
        slot.set_packet(&[7; 4]);
        assert_eq!(slot.padded(12), [0, 4, 7, 7, 7, 7, 0, 0, 0, 0, 0, 0]);
    }
}
