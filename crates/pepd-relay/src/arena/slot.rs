//! Memory of one flow.

use std::{io, ops::Range, os::fd::AsFd, sync::Arc};

use pep_core::{
    arena::{DirectionRecord, Flags, Header, Identity, Record, Words as _},
    relay::{Direction, Side},
    ring::Ranges,
};
use pepd_sys::memory::SharedMemory;

use super::{Arena, SlotState, Used, length};

/// Memory of one flow, released on drop.
#[derive(Debug)]
pub struct Slot {
    pub(super) arena: Arc<Arena>,
    pub(super) index: u32,
    pub(super) used: Used,
    /// True if its chunk tables may contain words.
    pub(super) has_chunks: bool,
}

impl Slot {
    /// Returns the slot number, counted from 0.
    pub fn index(&self) -> u32 {
        self.index
    }

    fn header(&self) -> Header<'_, SharedMemory> {
        self.arena.header(self.index)
    }

    /// Returns the published record of its flow, if there is a consistent one.
    pub fn record(&self) -> Option<Record> {
        self.arena.record(self.index)
    }

    /// Publishes the state, after everything that belongs to it.
    pub fn publish_state(&self, state: SlotState) {
        self.header().write_state(state);
    }

    /// Publishes the flow's identity, before its first state.
    pub fn publish_identity(&self, identity: &Identity) {
        self.header().write_identity(identity);
    }

    /// Publishes the state of the flow's stream.
    pub fn publish_flags(&self, flags: Flags) {
        self.header().write_flags(flags);
    }

    /// Publishes the socket cookie of a leg (SO_COOKIE); 0 means no socket.
    pub fn publish_cookie(&self, side: Side, cookie: u64) {
        self.header().write_cookie(side, cookie);
    }

    /// Publishes ring and position of one direction.
    pub fn publish_direction(&self, direction: Direction, part: &DirectionRecord) {
        self.header().write_direction(direction, part);
    }

    /// Returns the capacity of each direction in bytes.
    pub fn extent_bytes(&self) -> u64 {
        self.arena.layout.extent_bytes()
    }

    /// Returns the number of chunks per direction.
    pub fn chunks(&self) -> usize {
        self.arena.layout.chunks()
    }

    /// Returns the published word of a chunk of one direction.
    pub fn chunk(&self, direction: Direction, chunk: usize) -> u64 {
        let offset = self.arena.layout.chunk(self.index, direction, chunk);
        self.arena.memory.load(offset)
    }

    /// Publishes the bytes held by a chunk of one direction: the position of its first byte plus 1,
    /// or 0 for none. Publish the word before any byte is stored, and keep it while any byte is
    /// needed.
    pub fn publish_chunk(&mut self, direction: Direction, chunk: usize, word: u64) {
        self.has_chunks = true;
        let offset = self.arena.layout.chunk(self.index, direction, chunk);
        self.arena.memory.store(offset, word);
    }

    /// Gives back what rings have grown into, and clears the chunk tables.
    pub(super) fn clear(&mut self) {
        self.trim();
        self.clear_chunks();
    }

    fn clear_chunks(&mut self) {
        if !std::mem::take(&mut self.has_chunks) {
            return;
        }
        for direction in Direction::ALL {
            for chunk in 0..self.chunks() {
                let offset = self.arena.layout.chunk(self.index, direction, chunk);
                // A stored word has a page.
                if self.arena.memory.load(offset) != 0 {
                    self.arena.memory.store(offset, 0);
                }
            }
        }
    }

    /// Receives from a socket into the ring of one direction.
    ///
    /// # Errors
    /// As recvmsg(2). EFAULT: no memory for a page; no byte was lost.
    pub fn receive(
        &mut self,
        fd: impl AsFd,
        direction: Direction,
        space: &Ranges,
    ) -> io::Result<u64> {
        let used = &mut self.used[direction as usize];
        // A call that fails halfway may have touched the whole space.
        *used = (*used).max(space.first.end).max(space.second.end);
        let extent = self.arena.extent(self.index, direction);
        self.arena.memory.receive(fd.as_fd(), extent, space)
    }

    /// Sends to a socket from the ring of one direction.
    ///
    /// # Errors
    /// As sendmsg(2).
    pub fn send(&self, fd: impl AsFd, direction: Direction, data: &Ranges) -> io::Result<u64> {
        let extent = self.arena.extent(self.index, direction);
        self.arena.memory.send(fd.as_fd(), extent, data)
    }

    /// Copies bytes from the ring of one direction until `into` is full.
    ///
    /// # Panics
    /// Panics if `data` is shorter than `into`.
    pub fn read(&self, direction: Direction, data: &Ranges, into: &mut [u8]) {
        let extent = self.arena.extent(self.index, direction);
        let (first, second) = into.split_at_mut(length(&data.first).min(into.len()));
        assert!(second.len() <= length(&data.second));
        for (range, bytes) in [(&data.first, first), (&data.second, second)] {
            let at = extent + range.start as usize;
            self.arena.memory.copy_out(at, bytes);
        }
    }

    /// Copies bytes into the ring of one direction. The space must have pages, or memory for them.
    ///
    /// # Panics
    /// Panics if the space has another length than `bytes`.
    pub fn write(&mut self, direction: Direction, space: &Ranges, bytes: &[u8]) {
        assert_eq!(space.len(), bytes.len() as u64);
        let used = &mut self.used[direction as usize];
        *used = (*used).max(space.first.end).max(space.second.end);
        let extent = self.arena.extent(self.index, direction);
        let (first, second) = bytes.split_at(length(&space.first));
        for (range, bytes) in [(&space.first, first), (&space.second, second)] {
            let at = extent + range.start as usize;
            self.arena.memory.copy_in(at, bytes);
        }
    }

    /// Releases the pages of an empty ring.
    pub fn punch(&mut self, direction: Direction) {
        let used = std::mem::take(&mut self.used[direction as usize]);
        self.arena.punch_or_warn(self.index, direction, 0..used);
    }

    /// Releases the pages of a part of an extent that contains no byte.
    pub fn give_back(&mut self, direction: Direction, range: Range<u64>) {
        self.arena.punch_or_warn(self.index, direction, range);
    }

    /// Releases the pages that rings have grown into, beyond
    /// [`Geometry::initial`](super::Geometry::initial). Call it when the rings are empty. Costs
    /// nothing if none has grown.
    pub fn trim(&mut self) {
        let initial = self.arena.initial;
        for direction in Direction::ALL {
            let used = &mut self.used[direction as usize];
            let grown = initial..*used;
            *used = (*used).min(initial);
            self.arena.punch_or_warn(self.index, direction, grown);
        }
    }
}

impl Drop for Slot {
    /// The next flow takes the initial size of its rings from the budget; no flow would account for
    /// pages beyond that. The slot becomes free once this holds for a successor, too.
    fn drop(&mut self) {
        self.clear();
        self.publish_state(SlotState::Free);
        let mut free = self.arena.free.lock();
        if self.used == [0; 2] {
            free.clean.push(self.index);
        } else {
            free.used.push((self.index, self.used));
        }
    }
}
