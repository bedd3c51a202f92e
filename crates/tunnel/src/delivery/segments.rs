//! Unacknowledged segments, by number.
//!
//! ```text
//!   slots     [ 2 | - | - | 0 | 1 ]      8 bytes each; an acknowledged one has no entry
//!   entries   [ 3rd | 4th | 0th | free ]   200 bytes each
//! ```
//!
//! A peer that acknowledges all segments but one keeps the slots of all later ones in memory, but
//! not their entries.

use std::{collections::VecDeque, ops::Range, time::Duration};

use crate::ranges::RangeSet;

/// Number of a packet that has not been sent.
const NEVER: u64 = u64::MAX;

/// Transmission of a segment: packet number and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sending {
    pub(super) number: u64,
    pub(super) at: Duration,
}

/// An unacknowledged segment.
#[derive(Clone, Debug)]
pub(super) struct Segment<T> {
    pub(super) content: T,
    /// Bytes of its packet on the link, at the last push or transmission.
    pub(super) size: usize,
    /// Bytes of memory of the content beyond its own, at the push.
    beyond: usize,
    pub(super) last: Sending,
    /// The transmission before the last.
    pub(super) before: Option<Sending>,
    /// Number of times that the segment was declared lost.
    pub(super) losses: u8,
    /// True if the segment counts as in flight.
    pub(super) flying: bool,
    /// True if a transmission was FEC-protected: the segment may have been restored from other
    /// packets.
    pub(super) coded: bool,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Place of its entry; [`ACKED`] once it is acknowledged.
    entry: u32,
    /// Bytes that count in the window, even after acknowledgement, while earlier segments are
    /// missing.
    size: u32,
}

/// Entry of an acknowledged segment.
const ACKED: u32 = u32::MAX;

/// Slots for which memory stays allocated when all segments are acknowledged.
const SLOTS_KEPT: usize = 4096;

/// All segments from the first unacknowledged one on.
#[derive(Clone, Debug)]
pub(super) struct Segments<T> {
    first: u64,
    slots: VecDeque<Slot>,
    entries: Vec<Option<Segment<T>>>,
    /// Entries without a segment.
    free: Vec<u32>,
    bytes: u64,
    /// Memory of the contents beyond their own, in bytes.
    beyond: usize,
    unacked: RangeSet,
}

impl<T> Segments<T> {
    pub(super) fn new() -> Self {
        Self {
            first: 0,
            slots: VecDeque::new(),
            entries: Vec::new(),
            free: Vec::new(),
            bytes: 0,
            beyond: 0,
            unacked: RangeSet::default(),
        }
    }

    /// Returns the number of the next segment.
    pub(super) fn next(&self) -> u64 {
        self.first + self.slots.len() as u64
    }

    /// Returns the number of segments from the first unacknowledged one on, and the bytes of their
    /// packets.
    pub(super) fn span(&self) -> (usize, u64) {
        (self.slots.len(), self.bytes)
    }

    /// Returns the number of unacknowledged segments.
    pub(super) fn unacked(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Returns the memory in use, in bytes.
    pub(super) fn kept(&self) -> usize {
        self.slots.len() * size_of::<Slot>()
            + self.unacked() * size_of::<Option<Segment<T>>>()
            + self.beyond
    }

    /// Adds a segment. `beyond` is the memory of its content beyond its own, in bytes.
    pub(super) fn push(&mut self, content: T, size: usize, beyond: usize) -> u64 {
        let seq = self.next();
        let never = Sending {
            number: NEVER,
            at: Duration::ZERO,
        };
        let segment = Segment {
            content,
            size,
            beyond,
            last: never,
            before: None,
            losses: 0,
            flying: false,
            coded: false,
        };
        let entry = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            (self.entries.len() - 1) as u32
        });
        self.entries[entry as usize] = Some(segment);
        let size = size as u32;
        self.slots.push_back(Slot { entry, size });
        self.bytes += u64::from(size);
        self.beyond += beyond;
        self.unacked.insert(seq);
        seq
    }

    /// Returns an unacknowledged segment.
    pub(super) fn get_mut(&mut self, seq: u64) -> Option<&mut Segment<T>> {
        let entry = self.slot(seq)?.entry;
        self.entries.get_mut(entry as usize)?.as_mut()
    }

    fn get(&self, seq: u64) -> Option<&Segment<T>> {
        let entry = self.slot(seq)?.entry;
        self.entries.get(entry as usize)?.as_ref()
    }

    fn slot(&self, seq: u64) -> Option<&Slot> {
        let index = usize::try_from(seq.checked_sub(self.first)?).ok()?;
        self.slots.get(index)
    }

    /// Returns the allocated memory in bytes, without that of the segments' contents.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>()
            + self.entries.capacity() * size_of::<Option<Segment<T>>>()
            + self.free.capacity() * size_of::<u32>()
    }

    /// Returns the first unacknowledged segments, `count` at most.
    pub(super) fn first(&self, count: usize) -> impl Iterator<Item = (u64, &Segment<T>)> {
        let runs = self.unacked.from(self.first);
        let seqs = runs.flatten().take(count);
        seqs.filter_map(|seq| Some((seq, self.get(seq)?)))
    }

    /// Returns the segment if its last transmission was this packet and it is not acknowledged.
    pub(super) fn sent_as(&self, seq: u64, number: u64) -> Option<&Segment<T>> {
        self.get(seq)
            .filter(|segment| segment.last.number == number)
    }

    /// Removes the unacknowledged segments with these numbers, and passes them to `acked` in rising
    /// order.
    pub(super) fn acknowledge(&mut self, seqs: Range<u64>, mut acked: impl FnMut(u64, Segment<T>)) {
        let (first, slots) = (self.first, &mut self.slots);
        let (entries, free) = (&mut self.entries, &mut self.free);
        let beyond = &mut self.beyond;
        self.unacked.take(seqs, |run| {
            for seq in run {
                // Every number in `unacked` has a slot with an entry.
                let Some(slot) = slots.get_mut((seq - first) as usize) else {
                    continue;
                };
                let entry = std::mem::replace(&mut slot.entry, ACKED);
                if let Some(segment) = entries.get_mut(entry as usize).and_then(Option::take) {
                    free.push(entry);
                    *beyond -= segment.beyond;
                    acked(seq, segment);
                }
            }
        });
        self.advance();
    }

    fn advance(&mut self) {
        while let Some(slot) = self.slots.front().filter(|slot| slot.entry == ACKED) {
            self.bytes -= u64::from(slot.size);
            self.first += 1;
            self.slots.pop_front();
        }
        if self.slots.is_empty() && self.slots.capacity() > SLOTS_KEPT {
            (self.entries, self.free) = (Vec::new(), Vec::new());
            self.slots.shrink_to(SLOTS_KEPT);
        }
    }
}

impl<T> Segment<T> {
    pub(super) fn on_sent(&mut self, sending: Sending, size: usize, coded: bool) {
        self.before = (self.last.number != NEVER).then_some(self.last);
        self.last = sending;
        self.size = size;
        self.coded |= coded;
        self.flying = true;
    }
}
