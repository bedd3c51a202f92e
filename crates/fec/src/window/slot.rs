//! Room for one symbol, used again and again.

use crate::symbol::{self, LENGTH_BYTES};

/// A symbol with zeros behind it, as many as the longest symbol of its code takes.
#[derive(Clone, Debug, Default)]
pub(super) struct Slot {
    bytes: Box<[u8]>,
    /// How many bytes are in use; behind them all are zero.
    used: usize,
}

impl Slot {
    /// An empty one, for packets of up to `packet_max` bytes.
    pub(super) fn new(packet_max: usize) -> Self {
        Self {
            bytes: vec![0; LENGTH_BYTES + packet_max].into_boxed_slice(),
            used: 0,
        }
    }

    /// Holds a packet from now on, behind its length.
    pub(super) fn set_packet(&mut self, packet: &[u8]) {
        let used = LENGTH_BYTES + packet.len();
        symbol::write(packet, &mut self.bytes[..used]);
        self.zero_from(used);
    }

    /// Holds a symbol from now on.
    pub(super) fn set_symbol(&mut self, symbol: &[u8]) {
        self.bytes[..symbol.len()].copy_from_slice(symbol);
        self.zero_from(symbol.len());
    }

    /// Room for a symbol of `length` bytes, to be written in full.
    pub(super) fn room(&mut self, length: usize) -> &mut [u8] {
        self.zero_from(length);
        &mut self.bytes[..length]
    }

    /// The symbol's own bytes.
    pub(super) fn symbol(&self) -> &[u8] {
        &self.bytes[..self.used]
    }

    /// The symbol, or as much of it and of the zeros behind it as `length` says.
    pub(super) fn padded(&self, length: usize) -> &[u8] {
        &self.bytes[..length]
    }

    /// The packet in it, if its length makes sense.
    pub(super) fn packet(&self) -> Option<&[u8]> {
        symbol::read(self.symbol())
    }

    /// Takes what was written as a packet with its padding. Returns whether it is one: its length
    /// makes sense, and nothing but zeros is behind it.
    pub(super) fn trim(&mut self) -> bool {
        let Some(packet) = self.packet() else {
            return false;
        };
        let used = LENGTH_BYTES + packet.len();
        let padded = self.bytes[used..self.used].iter().all(|byte| *byte == 0);
        if padded {
            self.used = used; // else what is behind would be in nobody's way, and stay
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
