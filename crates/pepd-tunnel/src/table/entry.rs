//! One flow: its bytes both ways, and what they take from the budget.

mod keeping;

use std::{cell::Cell, task::Waker};

use pep_core::{
    arena::Flags,
    chunks::{CHUNK, ChunkMap},
    relay::Direction,
    ring::Ranges,
};
use pepd_relay::flow::FlowMemory;
use tunnel::wire::{ResetCode, StreamId};

pub(crate) use keeping::{CustodyHandle, Loss, Policy};
pub(super) use keeping::{Keeping, WINDOW};

use super::{Sizes, binding::Binding};

/// A flow as its session sees it.
#[derive(Debug)]
pub(crate) struct FlowBuffers {
    /// The peer's last byte is readable.
    pub(crate) finished: bool,
    /// The leg has given its last byte.
    pub(super) source_finished: bool,
    /// The leg has got the peer's last byte, and the end.
    pub(super) shut: bool,
    /// Both ends have everything, and know it.
    pub(crate) closed: bool,
    /// The stream was reset, or what is held of the flow has been held for too long.
    pub(crate) reset: Option<ResetCode>,
    pub(super) binding: Binding,
    /// Whom to tell that something of this has changed.
    pub(crate) waker: Option<Waker>,
    pub(super) memory: FlowMemory,
    pub(super) flags: Flags,
    pub(super) outward: Direction,
    /// From the leg to the peer: what the peer may lack, and what has not been sent.
    pub(super) outgoing: ChunkMap,
    /// From the peer to the leg: what the leg has not taken, and what has come ahead.
    pub(super) incoming: ChunkMap,
    /// The position after the last byte that was sent; changed while a session reads.
    pub(super) sent: Cell<u64>,
    /// Bytes from the leg that may wait to be sent.
    pub(super) unsent_max: u64,
    /// So many wait, and the leg with them.
    pub(super) waits: Cell<bool>,
    /// Bytes of a flow in each direction that were taken from the budget before it began.
    pub(super) initial: u64,
    /// Bytes of each extent that are taken from the budget.
    pub(super) charged: [u64; 2],
    /// Bytes beside them that are.
    pub(super) extra: u64,
    /// What is held because the link is away.
    pub(super) keeping: Keeping,
}

impl FlowBuffers {
    pub(super) fn new(
        memory: FlowMemory,
        outward: Direction,
        sizes: Sizes,
        initial: u64,
        keeper: CustodyHandle,
    ) -> Self {
        Self {
            finished: false,
            source_finished: false,
            shut: false,
            closed: false,
            reset: None,
            binding: Binding::new(),
            waker: None,
            flags: Flags::default(),
            outward,
            outgoing: ChunkMap::new(memory.slot.extent_bytes()).with_window(WINDOW),
            incoming: ChunkMap::new(memory.slot.extent_bytes()),
            sent: Cell::new(0),
            unsent_max: sizes.unsent,
            waits: Cell::new(false),
            initial,
            charged: [initial; 2],
            extra: 0,
            keeping: Keeping::new(keeper),
            memory,
        }
    }

    /// Whether the peer has opened it.
    pub(super) fn is_far(&self) -> bool {
        self.outward == Direction::Down
    }

    /// Its stream, as long as the session knows it.
    pub(crate) fn stream(&self) -> Option<StreamId> {
        self.binding.stream
    }

    /// Where the next bytes from the leg go; empty when so many wait to be sent that more would be of no use, or there is no
    /// space, or no memory for it. At most `most` bytes.
    pub(crate) fn space(&mut self, most: u64) -> Ranges {
        self.room(1, most)
    }

    /// The same for bytes that have to be `minimum` at least.
    pub(crate) fn space_of(&mut self, minimum: u64, most: u64) -> Ranges {
        let space = self.room(minimum, most);
        if space.len() < minimum {
            return Ranges::default();
        }
        space
    }

    fn room(&mut self, minimum: u64, most: u64) -> Ranges {
        let (asked, room) = (most, self.appetite());
        self.waits.set(room < minimum || self.is_behind());
        let most = asked.min(room);
        let mut len = self.outgoing.stretch(most);
        let reserved = self.outgoing.reserved_for(self.outgoing.tail() + len);
        let charged = self.charged_for_leg();
        let more = reserved.saturating_sub(charged);
        if more > 0 && !self.try_grow(more) {
            len = self.outgoing.stretch_within(most, charged);
            if len == 0 {
                self.give_spares_back();
            }
        }
        if len < minimum.min(asked) {
            self.make_room();
        }
        self.take_space(len)
    }

    fn take_space(&mut self, len: u64) -> Ranges {
        let space = self.outgoing.space(len);
        self.publish_chunks(self.outward);
        space
    }

    fn unsent(&self) -> u64 {
        self.outgoing.tail().saturating_sub(self.sent.get())
    }

    /// The leg's bytes are received by this.
    pub(crate) fn receive<T>(
        &mut self,
        receive: impl FnOnce(&mut pepd_relay::arena::Slot, Direction) -> T,
    ) -> T {
        receive(&mut self.memory.slot, self.outward)
    }

    /// Puts bytes that were made of the leg's into this space.
    pub(crate) fn write(&mut self, space: &Ranges, bytes: &[u8]) {
        let space = space.clone().up_to(bytes.len() as u64);
        self.memory.slot.write(self.outward, &space, bytes);
    }

    /// The leg has given these bytes.
    #[cfg(test)]
    pub(super) fn write_some(&mut self, bytes: &[u8]) {
        let space = self.space(bytes.len() as u64);
        self.write(&space, bytes);
        self.on_received(bytes.len() as u64);
    }

    /// So many bytes of memory belong to the flow, beside those of its extents.
    pub(crate) fn charge(&mut self, bytes: u64) {
        if bytes > self.extra {
            self.memory.share.grow(bytes - self.extra);
        } else {
            self.memory.share.give_back(self.extra - bytes);
        }
        self.extra = bytes;
    }

    /// How many bytes the leg has given.
    pub(crate) fn given(&self) -> u64 {
        self.outgoing.tail()
    }

    /// The leg has given `count` bytes. Returns the position after them.
    pub(crate) fn on_received(&mut self, count: u64) -> u64 {
        self.outgoing.fill(count);
        self.publish_direction(self.outward);
        self.outgoing.tail()
    }

    /// The peer has heard of the flow, and has all bytes of its stream below `until`.
    pub(super) fn on_acked(&mut self, until: u64) {
        self.binding.known = true;
        if let Some(until) = self.binding.sent_at(until) {
            self.abandon(until);
            self.wake();
        }
    }

    /// The peer has all bytes of the flow below `until`.
    pub(super) fn abandon(&mut self, until: u64) {
        let fresh = until.saturating_sub(self.outgoing.head());
        self.outgoing.drain(fresh.min(self.outgoing.len()));
        // What the peer has does not wait to be sent, whoever sent it: a predecessor may have.
        self.sent.set(self.sent.get().max(self.outgoing.head()));
        self.publish_direction(self.outward);
        self.publish_chunks(self.outward);
        self.settle(self.outward);
    }

    /// Copies bytes of the stream that the peer may lack, from this position on; whether there are so many.
    pub(super) fn read(&self, from: u64, into: &mut [u8]) -> bool {
        let begun = self.binding.read_prologue(from, into);
        let into = &mut into[begun..];
        if into.is_empty() {
            return true;
        }
        let len = into.len() as u64;
        let from = self.binding.sent_at(from + begun as u64);
        let Some((from, data)) = from.and_then(|from| Some((from, self.outgoing.held(from, len)?)))
        else {
            return false;
        };
        self.memory.slot.read(self.outward, &data, into);
        self.sent.set(self.sent.get().max(from + len));
        if self.waits.get() && self.announced_and_unsent() <= self.unsent_max / 2 {
            self.waits.set(false);
            if let Some(waker) = &self.waker {
                waker.wake_by_ref();
            }
        }
        true
    }

    /// All bytes of the stream below `until` have been placed. Whether the peer's answer is among them, and
    /// [new](super::Table::on_readable); and how many more the leg may take.
    pub(super) fn on_readable(&mut self, until: u64) -> (bool, u64) {
        let answered = self.binding.is_answered(until);
        let until = self.binding.received_at(until).min(self.incoming.highest());
        let more = until.saturating_sub(self.incoming.tail());
        self.incoming.fill(more);
        self.publish_direction(self.outward.other());
        self.wake();
        (answered, more)
    }

    /// Bytes for the leg, and what sends them.
    pub(crate) fn send<T>(
        &self,
        send: impl FnOnce(&pepd_relay::arena::Slot, Direction, &Ranges) -> T,
    ) -> Option<T> {
        let data = self.incoming.data();
        (!data.is_empty()).then(|| send(&self.memory.slot, self.outward.other(), &data))
    }

    /// The leg took `count` bytes. Returns the position up to which the peer may send.
    pub(crate) fn on_sent(&mut self, count: u64) -> u64 {
        self.incoming.drain(count);
        let inward = self.outward.other();
        self.publish_direction(inward);
        self.publish_chunks(inward);
        self.settle(inward);
        self.incoming.allowed()
    }

    /// Bytes for the leg that have come, with those that are missing before others.
    pub(super) fn taken(&self) -> u64 {
        self.incoming.highest() - self.incoming.head()
    }

    /// Those of them that the leg may take.
    pub(super) fn waiting(&self) -> u64 {
        self.incoming.tail() - self.incoming.head()
    }

    /// Whether the peer has everything that the leg gave.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// Whether the leg has everything that the peer gave so far.
    pub(crate) fn is_delivered(&self) -> bool {
        self.incoming.is_empty()
    }

    /// Bytes that were passed on: from the leg to the peer, from the peer to the leg.
    pub(crate) fn delivered(&self) -> [u64; 2] {
        let mut delivered = [0; 2];
        delivered[self.outward as usize] = self.outgoing.head();
        delivered[self.outward.other() as usize] = self.incoming.head();
        delivered
    }

    /// Bytes up and down that are held.
    pub(crate) fn held(&self) -> [u64; 2] {
        let mut held = [0; 2];
        held[self.outward as usize] = self.outgoing.len();
        held[self.outward.other() as usize] = self.incoming.len();
        held
    }

    /// Nothing has moved for a while: directions without bytes give their pages back.
    pub(crate) fn give_memory_back(&mut self) {
        for direction in Direction::ALL {
            let map = self.map(direction);
            if map.is_clear() {
                map.reset();
                self.publish_chunks(direction);
                self.memory.slot.punch(direction);
                self.settle(direction);
            }
        }
    }

    /// A second has passed: pages that were not in use lately are given back.
    pub(super) fn age(&mut self) {
        for direction in Direction::ALL {
            self.map(direction).age();
            self.settle(direction);
        }
    }

    fn map(&mut self, direction: Direction) -> &mut ChunkMap {
        if direction == self.outward {
            &mut self.outgoing
        } else {
            &mut self.incoming
        }
    }

    /// What a direction takes of the budget is what it needs: pages beyond that are given back.
    pub(super) fn settle(&mut self, direction: Direction) {
        while let Some(pages) = self.map(direction).spare() {
            self.memory.slot.give_back(direction, pages);
        }
        let needed = self.map(direction).reserved().max(self.initial);
        let more = needed.saturating_sub(self.charged[direction as usize]);
        // What has arrived comes before what the other direction keeps for later; its own is used up by now.
        if more > 0 && !self.memory.share.has_room(more) && self.drop_spares(direction.other()) {
            self.settle(direction.other());
        }
        let charged = &mut self.charged[direction as usize];
        if direction == self.outward {
            self.keeping.settle(*charged, needed);
        }
        if needed < *charged {
            self.memory.share.give_back(*charged - needed);
        } else {
            self.memory.share.grow(needed - *charged);
        }
        *charged = needed;
    }

    /// Where there is no memory for more, what is kept for later is too much as well: it may even be what stands in the way.
    fn give_spares_back(&mut self) {
        if self.drop_spares(self.outward) {
            self.settle(self.outward);
            self.wake();
        }
    }

    /// Whether there were any.
    fn drop_spares(&mut self, direction: Direction) -> bool {
        let mut dropped = false;
        while let Some(pages) = self.map(direction).last_spare() {
            self.memory.slot.give_back(direction, pages);
            dropped = true;
        }
        dropped
    }

    pub(super) fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// What the leg is still owed goes first, where the peer's host has ended the flow.
    pub(super) fn end(&mut self, code: ResetCode) {
        self.reset.get_or_insert(code);
        self.binding.release();
        self.wake();
    }

    /// The bytes have arrived, however little memory is left. Returns how many more are
    /// [taken](Self::taken).
    pub(super) fn place(&mut self, from: u64, bytes: &[u8]) -> u64 {
        let begun = self.binding.place_prologue(from, bytes);
        let (from, bytes) = (from + begun as u64, &bytes[begun..]);
        let from = self.binding.received_at(from);
        let known = self.incoming.tail().saturating_sub(from);
        let known = usize::try_from(known).ok();
        let Some(bytes) = known.and_then(|known| bytes.get(known..)) else {
            return 0;
        };
        if bytes.is_empty() {
            return 0;
        }
        let from = from.max(self.incoming.tail());
        let (before, len) = (self.incoming.highest(), bytes.len() as u64);
        let Some(space) = self.incoming.place(from, len) else {
            // Beyond what was allowed, which the session does not let through.
            tracing::error!(from, len, "a byte has arrived that was not allowed");
            self.end(ResetCode::Internal);
            return 0;
        };
        let inward = self.outward.other();
        self.publish_chunks(inward);
        self.settle(inward);
        self.memory.slot.write(inward, &space, bytes);
        self.incoming.highest() - before
    }
}

const _: () = assert!(
    CHUNK > u16::MAX as u64,
    "whatever comes in a datagram fits into a chunk"
);
