//! One flow: its two rings, and what they take from the budget.

use std::task::Waker;

use pep_core::{
    relay::Direction,
    ring::{Ranges, RingMap},
};
use tunnel::wire::{ResetCode, StreamId};

use crate::flow::FlowMemory;

/// A flow as its session sees it.
#[derive(Debug)]
pub(in crate::tunnel) struct Entry {
    /// Its stream, as long as the session knows it.
    pub(in crate::tunnel) stream: Option<StreamId>,
    /// The peer's last byte is readable.
    pub(in crate::tunnel) finished: bool,
    /// The stream was reset, by the peer or with its session.
    pub(in crate::tunnel) reset: Option<ResetCode>,
    /// Whom to tell that something of this has changed.
    pub(in crate::tunnel) waker: Option<Waker>,
    memory: FlowMemory,
    outward: Direction,
    out: RingMap,
    inn: RingMap,
    /// After the last byte of the peer's that has come.
    highest: u64,
    /// Bytes of each extent that were taken from the budget.
    charged: [u64; 2],
}

/// How much of a ring is taken from the budget at a time.
const STEP: u64 = 64 << 10;

impl Entry {
    pub(super) fn new(memory: FlowMemory, outward: Direction, ring: u64, initial: u64) -> Self {
        Self {
            stream: None,
            finished: false,
            reset: None,
            waker: None,
            memory,
            outward,
            out: RingMap::new(ring, ring),
            inn: RingMap::new(ring, ring),
            highest: 0,
            charged: [initial; 2],
        }
    }

    /// Where the next bytes from the leg go; empty when there is no space, or no memory for it. At most
    /// `most` bytes.
    pub(in crate::tunnel) fn space(&mut self, most: u64) -> Ranges {
        let space = self.out.space().up_to(most);
        let charged = &mut self.charged[self.outward as usize];
        let end = space.first.end.max(space.second.end);
        let more = end.saturating_sub(*charged).next_multiple_of(STEP);
        if end <= *charged {
            return space;
        }
        if self.memory.share.try_grow(more) {
            *charged += more;
            return space;
        }
        let room = charged.saturating_sub(space.first.start);
        space.up_to(room)
    }

    /// The leg's bytes are received by this.
    pub(in crate::tunnel) fn receive<T>(
        &mut self,
        receive: impl FnOnce(&mut crate::arena::Slot, Direction) -> T,
    ) -> T {
        receive(&mut self.memory.slot, self.outward)
    }

    /// The leg has given `count` bytes. Returns the position after them.
    pub(in crate::tunnel) fn on_received(&mut self, count: u64) -> u64 {
        self.out.fill(count);
        self.out.tail()
    }

    /// The peer has all bytes below `until`.
    pub(super) fn on_acked(&mut self, until: u64) {
        let fresh = until.saturating_sub(self.out.head());
        self.out.drain(fresh.min(self.out.len()));
        self.wake();
    }

    /// Copies bytes that the leg gave and the peer may lack, from this position on; whether there are so many.
    pub(super) fn read(&self, from: u64, into: &mut [u8]) -> bool {
        let data = self.out.held(from, into.len() as u64);
        if let Some(data) = &data {
            self.memory.slot.read(self.outward, data, into);
        }
        data.is_some()
    }

    /// All bytes for the leg below `until` have been placed.
    pub(super) fn on_readable(&mut self, until: u64) {
        let until = until.min(self.highest);
        self.inn.fill(until.saturating_sub(self.inn.tail()));
        self.wake();
    }

    /// Bytes for the leg, and what sends them.
    pub(in crate::tunnel) fn send<T>(
        &self,
        send: impl FnOnce(&crate::arena::Slot, Direction, &Ranges) -> T,
    ) -> Option<T> {
        let data = self.inn.data();
        (!data.is_empty()).then(|| send(&self.memory.slot, self.outward.other(), &data))
    }

    /// The leg took `count` bytes. Returns the position up to which the peer may send.
    pub(in crate::tunnel) fn on_sent(&mut self, count: u64) -> u64 {
        self.inn.drain(count);
        self.allowed()
    }

    /// Bytes of the ring that the peer has filled, with those that are missing before others.
    pub(super) fn taken(&self) -> u64 {
        self.highest - self.inn.head()
    }

    fn allowed(&self) -> u64 {
        self.inn.head() + self.inn.size()
    }

    /// Whether the peer has everything that the leg gave.
    pub(in crate::tunnel) fn is_acknowledged(&self) -> bool {
        self.out.is_empty()
    }

    /// Whether the leg has everything that the peer gave so far.
    pub(in crate::tunnel) fn is_delivered(&self) -> bool {
        self.inn.is_empty()
    }

    /// Bytes that were passed on: from the leg to the peer, from the peer to the leg.
    pub(in crate::tunnel) fn delivered(&self) -> [u64; 2] {
        let mut delivered = [0; 2];
        delivered[self.outward as usize] = self.out.head();
        delivered[self.outward.other() as usize] = self.inn.head();
        delivered
    }

    /// Bytes up and down that are held.
    pub(in crate::tunnel) fn held(&self) -> [u64; 2] {
        let mut held = [0; 2];
        held[self.outward as usize] = self.out.len();
        held[self.outward.other() as usize] = self.inn.len();
        held
    }

    /// Nothing has moved for a while: empty rings give their pages back.
    pub(in crate::tunnel) fn give_memory_back(&mut self, initial: u64) {
        for (direction, ring) in [(self.outward, &self.out), (self.outward.other(), &self.inn)] {
            if !ring.is_clear() {
                continue;
            }
            let charged = &mut self.charged[direction as usize];
            self.memory.share.give_back(*charged - initial);
            *charged = initial;
            self.memory.slot.punch(direction);
        }
    }

    pub(super) fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// What the leg is still owed goes first, where the peer's host has ended the flow.
    pub(super) fn end(&mut self, code: ResetCode) {
        self.reset.get_or_insert(code);
        self.stream = None;
        self.wake();
    }

    /// The bytes have arrived, however little memory is left. Returns how many more of the ring are
    /// [taken](Self::taken).
    pub(super) fn place(&mut self, from: u64, bytes: &[u8]) -> u64 {
        let known = self.inn.tail().saturating_sub(from);
        let known = usize::try_from(known).ok();
        let Some(bytes) = known.and_then(|known| bytes.get(known..)) else {
            return 0;
        };
        if bytes.is_empty() {
            return 0;
        }
        let from = from.max(self.inn.tail());
        let Some(space) = self.inn.place(from, bytes.len() as u64) else {
            // Beyond what was allowed, which the session does not let through.
            let len = bytes.len();
            tracing::error!(from, len, "a byte has arrived that was not allowed");
            self.end(ResetCode::Internal);
            return 0;
        };
        self.charge(&space);
        let inward = self.outward.other();
        self.memory.slot.write(inward, &space, bytes);
        let before = self.highest;
        self.highest = before.max(from + bytes.len() as u64);
        self.highest - before
    }

    /// Takes from the budget what bytes for the leg touch.
    fn charge(&mut self, space: &Ranges) {
        let charged = &mut self.charged[self.outward.other() as usize];
        let end = space.first.end.max(space.second.end);
        if end > *charged {
            let more = (end - *charged).next_multiple_of(STEP);
            self.memory.share.grow(more);
            *charged += more;
        }
    }
}
