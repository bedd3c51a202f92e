//! The memory of one flow.

use std::{io, ops::Range, os::fd::AsFd, sync::Arc};

use pep_core::{
    arena::{Flags, HalfRecord, Header, Identity, Record, Words as _},
    relay::{Direction, Side},
    ring::Ranges,
};
use pepd_sys::memory::SharedMemory;

use super::{Arena, SlotState, Used, length};

/// The memory of one flow; free again when dropped.
#[derive(Debug)]
pub struct Slot {
    pub(super) arena: Arc<Arena>,
    pub(super) index: u32,
    pub(super) used: Used,
    /// Its tables of chunks may have words in them.
    pub(super) has_chunks: bool,
}

impl Slot {
    /// Its number, from 0.
    pub fn index(&self) -> u32 {
        self.index
    }

    fn header(&self) -> Header<'_, SharedMemory> {
        self.arena.header(self.index)
    }

    /// What was published of its flow, if there is one and it makes sense.
    pub fn record(&self) -> Option<Record> {
        self.arena.record(self.index)
    }

    /// Publishes the state, after everything that belongs to it was published.
    pub fn publish_state(&self, state: SlotState) {
        self.header().write_state(state);
    }

    /// Publishes what the flow is, before its first state.
    pub fn publish_identity(&self, identity: &Identity) {
        self.header().write_identity(identity);
    }

    /// Publishes what has become of the flow's stream.
    pub fn publish_flags(&self, flags: Flags) {
        self.header().write_flags(flags);
    }

    /// Publishes which socket a leg of the flow is (SO_COOKIE); 0 is nobody's.
    pub fn publish_cookie(&self, side: Side, cookie: u64) {
        self.header().write_cookie(side, cookie);
    }

    /// Publishes where the bytes of a half are, and how far it has come.
    pub fn publish_half(&self, direction: Direction, half: &HalfRecord) {
        self.header().write_half(direction, half);
    }

    /// How many bytes each direction has room for.
    pub fn extent_bytes(&self) -> u64 {
        self.arena.layout.extent_bytes()
    }

    /// How many chunks that is.
    pub fn chunks(&self) -> usize {
        self.arena.layout.chunks()
    }

    /// What was published of a chunk of one direction.
    pub fn chunk(&self, direction: Direction, chunk: usize) -> u64 {
        let offset = self.arena.layout.chunk(self.index, direction, chunk);
        self.arena.memory.load(offset)
    }

    /// Publishes which bytes are in a chunk of one direction: the position of the first of them and 1; or 0, none. Before
    /// any of them is there, and as long as any of them is needed.
    pub fn publish_chunk(&mut self, direction: Direction, chunk: usize, word: u64) {
        self.has_chunks = true;
        let offset = self.arena.layout.chunk(self.index, direction, chunk);
        self.arena.memory.store(offset, word);
    }

    fn clear_chunks(&mut self) {
        if !std::mem::take(&mut self.has_chunks) {
            return;
        }
        for direction in Direction::ALL {
            for chunk in 0..self.chunks() {
                let offset = self.arena.layout.chunk(self.index, direction, chunk);
                // A word that is stored has a page.
                if self.arena.memory.load(offset) != 0 {
                    self.arena.memory.store(offset, 0);
                }
            }
        }
    }

    /// Receives from a socket into the ring of a half.
    ///
    /// # Errors
    /// As recvmsg(2). EFAULT: there is no memory for a page; nothing was lost.
    pub fn receive(
        &mut self,
        fd: impl AsFd,
        direction: Direction,
        space: &Ranges,
    ) -> io::Result<u64> {
        let used = &mut self.used[direction as usize];
        // A call that fails half way may have touched all of it.
        *used = (*used).max(space.first.end).max(space.second.end);
        let extent = self.arena.extent(self.index, direction);
        self.arena.memory.receive(fd.as_fd(), extent, space)
    }

    /// Sends to a socket from the ring of a half.
    ///
    /// # Errors
    /// As sendmsg(2).
    pub fn send(&self, fd: impl AsFd, direction: Direction, data: &Ranges) -> io::Result<u64> {
        let extent = self.arena.extent(self.index, direction);
        self.arena.memory.send(fd.as_fd(), extent, data)
    }

    /// Copies bytes that are in the ring of a half, as many as `into` has room for.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn read(&self, direction: Direction, data: &Ranges, into: &mut [u8]) {
        let extent = self.arena.extent(self.index, direction);
        let (first, second) = into.split_at_mut(length(&data.first).min(into.len()));
        assert!(second.len() <= length(&data.second));
        for (range, bytes) in [(&data.first, first), (&data.second, second)] {
            let at = extent + range.start as usize;
            self.arena.memory.copy_out(at, bytes);
        }
    }

    /// Copies bytes into the ring of a half. There has to be a page, or memory for one.
    ///
    /// # Panics
    /// When the space is not of that length.
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

    /// Gives back the pages of a ring that is empty.
    pub fn punch(&mut self, direction: Direction) {
        let used = std::mem::take(&mut self.used[direction as usize]);
        self.arena.punch_or_warn(self.index, direction, 0..used);
    }

    /// Gives back the pages of a part of an extent that no byte is in.
    pub fn give_back(&mut self, direction: Direction, range: Range<u64>) {
        self.arena.punch_or_warn(self.index, direction, range);
    }

    /// Gives back the pages that rings have grown into, beyond [`Geometry::initial`](super::Geometry::initial); to be
    /// called when no byte is in the rings. Costs nothing where none has grown.
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
    /// The next flow takes from the budget what its rings have to begin with; pages beyond that
    /// would be nobody's. It becomes free once that holds for a successor, too.
    fn drop(&mut self) {
        self.trim();
        self.clear_chunks();
        self.publish_state(SlotState::Free);
        let mut free = self.arena.free.lock();
        if self.used == [0; 2] {
            free.clean.push(self.index);
        } else {
            free.used.push((self.index, self.used));
        }
    }
}
