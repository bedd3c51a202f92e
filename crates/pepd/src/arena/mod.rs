//! Where the bytes of all flows are: one sparse memfd, mapped once.
//!
//! ```text
//!   page 0     magic | version | slots | extent bytes | first extent
//!   headers    one of 256 bytes per slot (see `header`)
//!   extents    two per slot, up then down, each of `ring_max` bytes
//! ```
//!
//! What a header says is published in an order that makes sense at every instant, so that
//! whoever holds the memfd and the sockets can carry on after a crash: the map of a ring is never torn
//! (see [`pep_core::ring`]), tails are published before heads, and the state of a slot last. Positions
//! may lag behind the kernel's own counters by the one call that was under way.

mod header;
#[cfg(test)]
mod tests;

use std::{
    io,
    num::NonZeroUsize,
    ops::Range,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering::Release},
};

use pep_core::{
    relay::{Direction, Half},
    ring::Ranges,
};

pub use header::SlotState;
use header::{HEADER_BYTES, Header};

use crate::sys::memory::SharedMemory;

const PAGE: usize = 4096;
/// "pepdaren" in ASCII.
const MAGIC: u64 = u64::from_be_bytes(*b"pepdaren");
/// Changes with the layout.
const VERSION: u64 = 1;

/// What an arena is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Flows at most.
    pub slots: u32,
    /// Bytes of each extent; a power of two of at least one page.
    pub extent: u64,
    /// Bytes of each extent that a slot may keep from one flow to the next, since every flow has
    /// taken so many from the budget; a multiple of a page.
    pub initial: u64,
}

impl Geometry {
    fn headers(self) -> usize {
        PAGE
    }

    fn extents(self) -> usize {
        (self.headers() + self.slots as usize * HEADER_BYTES).next_multiple_of(PAGE)
    }

    fn len(self) -> Option<NonZeroUsize> {
        let extents = (self.slots as usize).checked_mul(2)?;
        let bytes = extents.checked_mul(usize::try_from(self.extent).ok()?)?;
        NonZeroUsize::new(bytes.checked_add(self.extents())?)
    }
}

/// The memory of all flows.
#[derive(Debug)]
pub struct Arena {
    memory: SharedMemory,
    geometry: Geometry,
    free: Mutex<FreeSlots>,
}

/// Slots without a flow. The one freed last is taken first: its pages are in the cache.
#[derive(Debug)]
struct FreeSlots {
    /// With bytes that may still have pages.
    used: Vec<(u32, Used)>,
    /// Without pages.
    clean: Vec<u32>,
}

/// How much of each extent may have pages.
type Used = [u64; 2];

impl Arena {
    /// An arena without flows.
    ///
    /// # Errors
    /// When there is no memory or address space for it.
    pub fn new(geometry: Geometry) -> io::Result<Arc<Self>> {
        let len = geometry.len().ok_or(io::ErrorKind::OutOfMemory)?;
        let memory = SharedMemory::new("pepd-arena", len)?;
        let header = [
            VERSION,
            geometry.slots.into(),
            geometry.extent,
            geometry.extents() as u64,
        ];
        for (index, value) in header.into_iter().enumerate() {
            memory.atomic(8 + 8 * index).store(value, Release);
        }
        // Last: an arena with the magic is complete.
        memory.atomic(0).store(MAGIC, Release);
        let free = Mutex::new(FreeSlots {
            used: Vec::new(),
            clean: (0..geometry.slots).rev().collect(),
        });
        Ok(Arc::new(Self {
            memory,
            geometry,
            free,
        }))
    }

    /// The memfd that outlives a crash of whoever else holds it.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.memory.fd()
    }

    /// A slot for a flow, or `None` when all are taken.
    pub fn take_slot(self: &Arc<Self>) -> Option<Slot> {
        let mut free = self.free_slots();
        let recent = free.used.pop();
        let (index, used) = recent.or_else(|| Some((free.clean.pop()?, [0; 2])))?;
        Some(Slot {
            arena: Arc::clone(self),
            index,
            used,
            has_cookies: false,
        })
    }

    /// Gives back the pages of slots without a flow, of up to `most` of them: so that a call is
    /// short. To be called now and then.
    pub fn sweep(&self, most: usize) {
        let used: Vec<_> = {
            let mut free = self.free_slots();
            let count = most.min(free.used.len());
            // The oldest ones; the newest may be taken again at once.
            free.used.drain(..count).collect()
        };
        for (index, used) in used {
            for direction in Direction::ALL {
                self.punch_or_warn(index, direction, 0..used[direction as usize]);
            }
            self.free_slots().clean.push(index);
        }
    }

    fn free_slots(&self) -> MutexGuard<'_, FreeSlots> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn header(&self, index: u32) -> Header<'_> {
        let offset = self.geometry.headers() + index as usize * HEADER_BYTES;
        Header::new(&self.memory, offset)
    }

    fn extent(&self, index: u32, direction: Direction) -> usize {
        let extent = index as usize * 2 + direction as usize;
        self.geometry.extents() + extent * self.geometry.extent as usize
    }

    /// Keeping the pages is only a waste.
    fn punch_or_warn(&self, index: u32, direction: Direction, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let offset = self.extent(index, direction) + range.start as usize;
        let len = (range.end - range.start) as usize;
        if let Err(err) = self.memory.punch(offset, len) {
            tracing::warn!(error = %err, "cannot give back the pages of a ring");
        }
    }
}

/// The memory of one flow; free again when dropped.
#[derive(Debug)]
pub struct Slot {
    arena: Arc<Arena>,
    index: u32,
    used: Used,
    /// The header has cookies of the flow.
    has_cookies: bool,
}

impl Slot {
    /// Its number, from 0.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Publishes the state, after everything that belongs to it was published.
    pub fn publish_state(&self, state: SlotState) {
        self.arena.header(self.index).publish_state(state);
    }

    /// Whether cookies of the flow have been published.
    pub fn has_cookies(&self) -> bool {
        self.has_cookies
    }

    /// Publishes which sockets belong to the flow (SO_COOKIE), the client's and the server's. Before
    /// that they are 0, which is nobody's.
    pub fn publish_cookies(&mut self, cookies: [u64; 2]) {
        self.has_cookies = true;
        self.arena.header(self.index).publish_cookies(cookies);
    }

    /// Publishes where the bytes of a half are, and how far it has come.
    pub fn publish_half(&self, direction: Direction, half: &Half) {
        self.arena.header(self.index).publish_half(direction, half);
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

    /// Gives back the pages that rings have grown into, beyond [`Geometry::initial`]; to be called
    /// when no byte is in the rings. Costs nothing where none has grown.
    pub fn trim(&mut self) {
        let initial = self.arena.geometry.initial;
        for direction in Direction::ALL {
            let used = &mut self.used[direction as usize];
            let grown = initial..*used;
            *used = (*used).min(initial);
            self.arena.punch_or_warn(self.index, direction, grown);
        }
    }
}

fn length(range: &Range<u64>) -> usize {
    (range.end - range.start) as usize
}

impl Drop for Slot {
    /// The next flow takes from the budget what its rings have to begin with; pages beyond that
    /// would be nobody's.
    fn drop(&mut self) {
        self.publish_state(SlotState::Free);
        if self.has_cookies {
            self.publish_cookies([0; 2]);
        }
        self.trim();
        let mut free = self.arena.free_slots();
        if self.used == [0; 2] {
            free.clean.push(self.index);
        } else {
            free.used.push((self.index, self.used));
        }
    }
}
