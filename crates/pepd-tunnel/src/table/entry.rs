//! One flow: its bytes in both directions, and their share of the budget.

mod keeping;

use std::{cell::Cell, task::Waker};

use pep_core::{
    arena::Flags,
    chunks::{CHUNK, ChunkMap},
    hosts::Host,
    relay::Direction,
    ring::Ranges,
};
use pepd_relay::flow::FlowMemory;
use tunnel::wire::{ResetCode, StreamId};

pub(crate) use keeping::{CustodyHandle, Loss, Policy};
pub(super) use keeping::{Keeping, WINDOW};

use super::{Sizes, binding::Binding};

/// Buffers of a flow, as its session sees them.
#[derive(Debug)]
pub(crate) struct FlowBuffers {
    /// The peer's last byte is readable.
    pub(crate) finished: bool,
    /// The leg has ended.
    pub(super) source_finished: bool,
    /// The leg has received the peer's last byte and the FIN.
    pub(super) shut: bool,
    /// Both ends have everything and know it.
    pub(crate) closed: bool,
    /// The stream was reset, or the flow's bytes were held for too long.
    pub(crate) reset: Option<ResetCode>,
    pub(super) binding: Binding,
    /// Host of the client, once known.
    pub(super) host: Option<Host>,
    /// Waker of the flow's task.
    pub(crate) waker: Option<Waker>,
    pub(super) memory: FlowMemory,
    pub(super) flags: Flags,
    pub(super) outward: Direction,
    /// Bytes from the leg that the peer may lack, or that have not been sent.
    pub(super) outgoing: ChunkMap,
    /// Bytes from the peer that the leg has not taken, or that arrived out of order.
    pub(super) incoming: ChunkMap,
    /// Position after the last sent byte; changes while a session reads.
    pub(super) sent: Cell<u64>,
    /// Maximum of unsent bytes from the leg.
    pub(super) unsent_max: u64,
    /// The maximum of unsent bytes is reached, and the leg waits.
    pub(super) waits: Cell<bool>,
    /// Bytes per direction taken from the budget at the start.
    pub(super) initial: u64,
    /// Bytes of each extent taken from the budget.
    pub(super) charged: [u64; 2],
    /// Other bytes taken from the budget.
    pub(super) extra: u64,
    /// Custody of bytes while the link is down.
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
            host: None,
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

    /// Returns whether the peer has opened the flow.
    pub(super) fn is_far(&self) -> bool {
        self.outward == Direction::Down
    }

    /// Returns whether only bytes of the flow have come: no task serves it.
    pub(super) fn is_only_bytes(&self) -> bool {
        self.is_far() && self.binding.token == 0
    }

    /// Returns the flow's stream while the session knows it.
    pub(crate) fn stream(&self) -> Option<StreamId> {
        self.binding.stream
    }

    /// Returns the room for bytes from the leg, up to `most` bytes. Empty when the maximum of
    /// unsent bytes is reached, or space or memory is lacking.
    pub(crate) fn space(&mut self, most: u64) -> Ranges {
        self.room(1, most)
    }

    /// Returns the room for no less than `minimum` bytes.
    pub(crate) fn space_of(&mut self, minimum: u64, most: u64) -> Ranges {
        let space = self.room(minimum, most);
        if space.len() < minimum {
            return Ranges::default();
        }
        space
    }

    fn room(&mut self, minimum: u64, most: u64) -> Ranges {
        let (asked, room) = (most, self.acceptable());
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

    /// Receives bytes of the leg by a function.
    pub(crate) fn receive<T>(
        &mut self,
        receive: impl FnOnce(&mut pepd_relay::arena::Slot, Direction) -> T,
    ) -> T {
        receive(&mut self.memory.slot, self.outward)
    }

    /// Writes bytes made from the leg's into this space.
    pub(crate) fn write(&mut self, space: &Ranges, bytes: &[u8]) {
        let space = space.clone().up_to(bytes.len() as u64);
        self.memory.slot.write(self.outward, &space, bytes);
    }

    /// Adds bytes of the leg.
    #[cfg(test)]
    pub(super) fn write_some(&mut self, bytes: &[u8]) {
        let space = self.space(bytes.len() as u64);
        self.write(&space, bytes);
        self.on_received(bytes.len() as u64);
    }

    /// Charges memory of the flow outside of its extents.
    pub(crate) fn charge(&mut self, bytes: u64) {
        if bytes > self.extra {
            self.memory.share.grow(bytes - self.extra);
        } else {
            self.memory.share.give_back(self.extra - bytes);
        }
        self.extra = bytes;
    }

    /// Returns the number of bytes received from the leg.
    pub(crate) fn given(&self) -> u64 {
        self.outgoing.tail()
    }

    /// Records `count` bytes received from the leg. Returns the position after them.
    pub(crate) fn on_received(&mut self, count: u64) -> u64 {
        self.outgoing.fill(count);
        self.publish_direction(self.outward);
        self.outgoing.tail()
    }

    /// Records that the peer knows the flow and has all bytes of its stream below `until`.
    pub(super) fn on_acked(&mut self, until: u64) {
        self.binding.known = true;
        if let Some(until) = self.binding.sent_at(until) {
            self.abandon(until);
            self.wake();
        }
    }

    /// Drops the bytes below `until`, which the peer has.
    pub(super) fn abandon(&mut self, until: u64) {
        let fresh = until.saturating_sub(self.outgoing.head());
        self.outgoing.drain(fresh.min(self.outgoing.len()));
        // Bytes that the peer has are not unsent, whoever sent them: a predecessor may have.
        self.sent.set(self.sent.get().max(self.outgoing.head()));
        self.publish_direction(self.outward);
        self.publish_chunks(self.outward);
        self.settle(self.outward);
    }

    /// Copies bytes of the stream from this position on. Returns whether there are enough.
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

    /// Handles the arrival of all bytes of the stream below `until`. Returns whether they complete
    /// a [new](super::Table::on_readable) answer of the peer, and how many more bytes the leg may
    /// take.
    pub(super) fn on_readable(&mut self, until: u64) -> (bool, u64) {
        let answered = self.binding.is_answered(until);
        let until = self.binding.received_at(until).min(self.incoming.highest());
        let more = until.saturating_sub(self.incoming.tail());
        self.incoming.fill(more);
        self.publish_direction(self.outward.other());
        self.wake();
        (answered, more)
    }

    /// Sends bytes to the leg by a function.
    pub(crate) fn send<T>(
        &self,
        send: impl FnOnce(&pepd_relay::arena::Slot, Direction, &Ranges) -> T,
    ) -> Option<T> {
        let data = self.incoming.data();
        (!data.is_empty()).then(|| send(&self.memory.slot, self.outward.other(), &data))
    }

    /// Records `count` bytes taken by the leg. Returns the position up to which the peer may send.
    pub(crate) fn on_sent(&mut self, count: u64) -> u64 {
        self.incoming.drain(count);
        let inward = self.outward.other();
        self.publish_direction(inward);
        self.publish_chunks(inward);
        self.settle(inward);
        self.incoming.allowed()
    }

    /// Returns the bytes received for the leg, including gaps before later ones.
    pub(super) fn taken(&self) -> u64 {
        self.incoming.highest() - self.incoming.head()
    }

    /// Returns the bytes that the leg may take.
    pub(super) fn waiting(&self) -> u64 {
        self.incoming.tail() - self.incoming.head()
    }

    /// Returns whether the peer has all bytes of the leg.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// Returns whether the leg has all bytes received so far.
    pub(crate) fn is_delivered(&self) -> bool {
        self.incoming.is_empty()
    }

    /// Returns the delivered bytes: from the leg to the peer, and from the peer to the leg.
    pub(crate) fn delivered(&self) -> [u64; 2] {
        let mut delivered = [0; 2];
        delivered[self.outward as usize] = self.outgoing.head();
        delivered[self.outward.other() as usize] = self.incoming.head();
        delivered
    }

    /// Returns the held bytes, upstream and downstream.
    pub(crate) fn held(&self) -> [u64; 2] {
        let mut held = [0; 2];
        held[self.outward as usize] = self.outgoing.len();
        held[self.outward.other() as usize] = self.incoming.len();
        held
    }

    /// Gives back the pages of empty directions after some idle time.
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

    /// Gives back pages that were not used recently; called every second.
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

    /// Adjusts the charge of a direction to its need. Gives back the pages beyond it.
    pub(super) fn settle(&mut self, direction: Direction) {
        while let Some(pages) = self.map(direction).spare() {
            self.memory.slot.give_back(direction, pages);
        }
        let needed = self.map(direction).reserved().max(self.initial);
        let more = needed.saturating_sub(self.charged[direction as usize]);
        // Received bytes take precedence over the other direction's spare pages; the own ones are
        // used up.
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

    /// Gives back spare pages when memory is short: they may be what blocks progress.
    fn give_spares_back(&mut self) {
        if self.drop_spares(self.outward) {
            self.settle(self.outward);
            self.wake();
        }
    }

    /// Returns whether there were any.
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

    /// Ends the flow. If the peer's host has ended it, the leg first gets the received bytes.
    pub(super) fn end(&mut self, code: ResetCode) {
        self.reset.get_or_insert(code);
        self.binding.release();
        self.wake();
    }

    /// Places received bytes, even if memory is short. Returns how many more are
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
            // Beyond the granted credit, which the session enforces.
            tracing::error!(
                from,
                len,
                "flow reset: byte received beyond the granted credit; a bug of either pepd: please report"
            );
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
    "the content of a datagram fits into a chunk"
);
