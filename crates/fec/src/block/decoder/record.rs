//! Record of a block: its delivered packets.

use super::super::bits::Bits;

/// Record of the last seen of the blocks whose numbers are the same modulo the size of the memory.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) block: u32,
    pub(super) state: State,
    /// Data packets received or restored.
    pub(super) seen: Bits,
    /// Number of data packets of the block; 0 while unknown.
    pub(super) k: u8,
    /// Number and checksum of the first data packet received. A packet of this number with another
    /// checksum is of another block.
    sample: Option<(u8, u32)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No block.
    Empty,
    /// In work; its packets are in this slot.
    InWork(u16),
    /// Complete, or dropped.
    Over,
}

impl Record {
    pub(super) const EMPTY: Self = Self {
        block: 0,
        state: State::Empty,
        seen: Bits::EMPTY,
        k: 0,
        sample: None,
    };

    /// Returns the record of a new block in work in `slot`.
    pub(super) fn new(block: u32, slot: u16) -> Self {
        Self {
            block,
            state: State::InWork(slot),
            ..Self::EMPTY
        }
    }

    pub(super) fn is_of(&self, block: u32) -> bool {
        self.state != State::Empty && self.block == block
    }

    /// Number of data packets known to be missing: all of them where k is known, else those before
    /// one that was received.
    pub(super) fn missing(&self) -> usize {
        self.seen.end().max(self.k.into()) - self.seen.len()
    }

    pub(super) fn complete(&self) -> bool {
        self.k > 0 && self.missing() == 0
    }

    /// Records a received data packet.
    pub(super) fn see(&mut self, index: u8, packet: &[u8]) {
        self.seen.insert(index);
        if self.sample.is_none() {
            self.sample = Some((index, check(packet)));
        }
    }

    /// Reports whether a data packet certainly differs from the one received under this number.
    pub(super) fn contradicts(&self, index: u8, packet: &[u8]) -> bool {
        self.sample
            .is_some_and(|(number, of)| number == index && of != check(packet))
    }
}

/// Checksum for packets that differ by chance, not by malice (FNV-1a, eight bytes at a time).
fn check(packet: &[u8]) -> u32 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let step = |hash: u64, word: u64| (hash ^ word).wrapping_mul(PRIME).rotate_left(29);
    let (words, rest) = packet.as_chunks();
    let hash = words
        .iter()
        .fold(OFFSET ^ packet.len() as u64, |hash, word| {
            step(hash, u64::from_le_bytes(*word))
        });
    let hash = rest
        .iter()
        .fold(hash, |hash, byte| step(hash, (*byte).into()));
    (hash ^ (hash >> 32)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_depends_on_every_byte_and_on_the_length() {
        let packet = [0; 29];
        for i in 0..packet.len() {
            let mut other = packet;
            other[i] = 1;
            assert_ne!(check(&packet), check(&other), "byte {i}");
        }
        assert_ne!(check(&packet), check(&packet[..28]));
    }

    #[test]
    fn a_record_is_small() {
        assert!(size_of::<Record>() <= 64, "as the configuration says");
    }
}
