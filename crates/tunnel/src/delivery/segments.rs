//! Unacknowledged segments, by number.

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

#[derive(Clone, Debug)]
struct Slot<T> {
    segment: Option<Segment<T>>,
    /// Bytes that count in the window, even after acknowledgement, while earlier segments are
    /// missing.
    size: usize,
}

/// All segments from the first unacknowledged one on.
#[derive(Clone, Debug)]
pub(super) struct Segments<T> {
    first: u64,
    slots: VecDeque<Slot<T>>,
    bytes: u64,
    unacked: RangeSet,
}

impl<T> Segments<T> {
    pub(super) fn new() -> Self {
        Self {
            first: 0,
            slots: VecDeque::new(),
            bytes: 0,
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

    pub(super) fn push(&mut self, content: T, size: usize) -> u64 {
        let seq = self.next();
        let never = Sending {
            number: NEVER,
            at: Duration::ZERO,
        };
        let segment = Segment {
            content,
            size,
            last: never,
            before: None,
            losses: 0,
            flying: false,
            coded: false,
        };
        self.slots.push_back(Slot {
            segment: Some(segment),
            size,
        });
        self.bytes += size as u64;
        self.unacked.insert(seq);
        seq
    }

    /// Returns an unacknowledged segment.
    pub(super) fn get_mut(&mut self, seq: u64) -> Option<&mut Segment<T>> {
        let index = usize::try_from(seq.checked_sub(self.first)?).ok()?;
        self.slots.get_mut(index)?.segment.as_mut()
    }

    /// Returns the first unacknowledged segments, `count` at most.
    pub(super) fn first(&self, count: usize) -> impl Iterator<Item = (u64, &Segment<T>)> {
        let runs = self.unacked.from(self.first);
        runs.flatten().take(count).filter_map(|seq| {
            let index = usize::try_from(seq.checked_sub(self.first)?).ok()?;
            Some((seq, self.slots.get(index)?.segment.as_ref()?))
        })
    }

    /// Returns the segment if its last transmission was this packet and it is not acknowledged.
    pub(super) fn sent_as(&self, seq: u64, number: u64) -> Option<&Segment<T>> {
        let index = usize::try_from(seq.checked_sub(self.first)?).ok()?;
        let segment = self.slots.get(index)?.segment.as_ref()?;
        (segment.last.number == number).then_some(segment)
    }

    /// Removes the unacknowledged segments with these numbers, and passes them to `acked` in rising
    /// order.
    pub(super) fn acknowledge(&mut self, seqs: Range<u64>, mut acked: impl FnMut(u64, Segment<T>)) {
        let (first, slots) = (self.first, &mut self.slots);
        self.unacked.take(seqs, |run| {
            for seq in run {
                // Every number in `unacked` has a slot with a segment.
                let slot = slots.get_mut((seq - first) as usize);
                if let Some(segment) = slot.and_then(|slot| slot.segment.take()) {
                    acked(seq, segment);
                }
            }
        });
        self.advance();
    }

    fn advance(&mut self) {
        while let Some(slot) = self.slots.front().filter(|slot| slot.segment.is_none()) {
            self.bytes -= slot.size as u64;
            self.first += 1;
            self.slots.pop_front();
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
