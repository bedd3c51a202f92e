//! Data packets outside the span: a few of them in a row, near each other, mean that the encoder
//! has moved to other numbers.

use super::slot::Slot;
use crate::serial;

/// Consecutive packets required far ahead: such numbers only come after an outage.
pub(super) const AHEAD: usize = 3;

/// Consecutive packets required behind, where stragglers may be among them.
pub(super) const BEHIND: usize = 8;

#[derive(Clone, Debug)]
pub(super) struct Strays {
    packets: Vec<(u32, Slot)>,
    used: usize,
}

impl Strays {
    pub(super) fn new(packet_max: usize) -> Self {
        Self {
            packets: vec![(0, Slot::new(packet_max)); BEHIND],
            used: 0,
        }
    }

    pub(super) fn clear(&mut self) {
        self.used = 0;
    }

    /// Reports whether the packet is stored.
    pub(super) fn has(&self, id: u32) -> bool {
        self.packets[..self.used]
            .iter()
            .any(|(other, _)| *other == id)
    }

    /// Stores a packet; drops those before it if it is more than `near` away from the last. Returns
    /// the number stored.
    pub(super) fn keep(&mut self, id: u32, packet: &[u8], near: u32) -> usize {
        if let Some((last, _)) = self.packets[..self.used].last()
            && serial::distance(*last, id).unsigned_abs() > near
        {
            self.used = 0;
        }
        let (place, slot) = &mut self.packets[self.used];
        *place = id;
        slot.set_packet(packet);
        self.used += 1;
        self.used
    }

    /// Newest of the strays.
    pub(super) fn newest(&self) -> Option<u32> {
        let ids = self.packets[..self.used].iter().map(|(id, _)| *id);
        ids.reduce(|a, b| if serial::before(a, b) { b } else { a })
    }

    /// Removes the packets one by one, in exchange for other slots.
    pub(super) fn pop(&mut self) -> Option<(u32, &mut Slot)> {
        self.used = self.used.checked_sub(1)?;
        let (id, slot) = &mut self.packets[self.used];
        Some((*id, slot))
    }
}
