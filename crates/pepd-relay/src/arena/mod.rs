//! Storage for the bytes of all flows: one sparse memfd, mapped once. [`pep_core::arena`] defines
//! its layout and the order of writes.
//!
//! The process that holds the memfd and the sockets can continue after a crash. Published positions
//! lag behind the kernel's counters by at most the one call in progress.

mod slot;
#[cfg(test)]
mod tests;

use std::{
    io,
    net::IpAddr,
    num::NonZeroUsize,
    ops::Range,
    os::fd::{BorrowedFd, OwnedFd},
    process,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
pub use pep_core::arena::SlotState;
use pep_core::{
    arena::{Ending, FormatError, Header, Layout, Record, Seal, Words as _},
    chunks::CHUNK,
    outage::{Latest, Past},
    relay::Direction,
};
use pepd_sys::{keys, memory::SharedMemory};

pub use slot::Slot;

/// Dimensions of an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Maximum number of flows.
    pub slots: u32,
    /// Bytes of each extent: a power of two, one page or more.
    pub extent: u64,
    /// Bytes of each extent that a slot may keep from one flow to the next: a multiple of a page.
    /// Each flow takes this amount from the budget when it begins.
    pub initial: u64,
}

/// Reason why the memory of a predecessor is not used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Wrong format or version.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The mapping failed.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// Memory of all flows.
#[derive(Debug)]
pub struct Arena {
    memory: SharedMemory,
    layout: Layout,
    /// See [`Geometry::initial`].
    initial: u64,
    free: Mutex<FreeSlots>,
    /// Number of the next flow that ends.
    next_ending: AtomicU64,
}

/// Slots without a flow. The slot freed last is taken first: its pages are in the cache.
#[derive(Debug)]
struct FreeSlots {
    /// Free slots whose extents may still have pages.
    used: Vec<(u32, Used)>,
    /// Free slots of a predecessor. It may have ended before it recorded the flow of one, whose
    /// bytes and words are still there.
    inherited: Vec<u32>,
    /// Free slots without pages.
    clean: Vec<u32>,
    /// Slots from this one on were never taken. Reading their headers would allocate pages.
    untouched: u32,
}

/// Number of the first flow that ends.
const FIRST_ENDING: u64 = 1;

/// Bytes of each extent that may have pages.
type Used = [u64; 2];

impl Arena {
    /// Creates an arena without flows.
    ///
    /// # Errors
    /// Fails without memory or address space for it.
    pub fn new(geometry: Geometry) -> io::Result<Arc<Self>> {
        let Geometry {
            slots,
            extent,
            initial,
        } = geometry;
        let layout = Layout::new(slots, extent).ok_or(io::ErrorKind::OutOfMemory)?;
        let len = NonZeroUsize::new(layout.len()).ok_or(io::ErrorKind::InvalidInput)?;
        let memory = SharedMemory::new(Self::NAME, len)?;
        layout.write(&memory, &keys::random().map_err(io::Error::other)?);
        let free = FreeSlots {
            used: Vec::new(),
            inherited: Vec::new(),
            clean: (0..slots).rev().collect(),
            untouched: 0,
        };
        Ok(Self::begin(memory, layout, initial, free, FIRST_ENDING))
    }

    /// Opens the arena of a predecessor, with its flows. The caller [attaches](Self::attach) their
    /// slots.
    ///
    /// # Errors
    /// Fails if the memfd is no arena, has another version, or cannot be mapped.
    pub fn open(fd: OwnedFd, initial: u64) -> Result<Arc<Self>, OpenError> {
        let memory = SharedMemory::open(fd)?;
        let layout = Layout::read(&memory, memory.len())?;
        let has_flow = |slot: &u32| Header::new(&memory, layout.header(*slot)).has_flow();
        let inherited = (0..layout.slots()).rev().filter(|slot| !has_flow(slot));
        let free = FreeSlots {
            used: Vec::new(),
            inherited: inherited.collect(),
            clean: Vec::new(),
            untouched: layout.slots(),
        };
        let endings = Layout::endings(&memory).read(|_| true);
        let next = endings.last().map(|(number, _)| number + 1);
        let next = next.unwrap_or(FIRST_ENDING);
        Ok(Self::begin(memory, layout, initial, free, next))
    }

    /// Name of the memfd in /proc.
    pub const NAME: &str = "pepd-arena";

    fn begin(
        memory: SharedMemory,
        layout: Layout,
        initial: u64,
        free: FreeSlots,
        next_ending: u64,
    ) -> Arc<Self> {
        Layout::begin_generation(&memory, process::id());
        Arc::new(Self {
            memory,
            layout,
            initial,
            free: Mutex::new(free),
            next_ending: AtomicU64::new(next_ending),
        })
    }

    /// Stops all writes of this process to the arena when the crash point fires.
    #[cfg(any(test, feature = "testing"))]
    pub fn end_with(&self, crash_point: &Arc<pepd_sys::crash_point::CrashPoint>) {
        self.memory.end_with(crash_point);
    }

    /// Returns the layout, which gives the number of slots.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns the number of processes that have used the arena in turn, including this one.
    pub fn generation(&self) -> u64 {
        Layout::generation(&self.memory)
    }

    /// Returns the link order an operator gave to this process or a predecessor
    /// ([`pep_core::outage::Order`]).
    pub fn order(&self) -> u64 {
        Layout::order(&self.memory)
    }

    /// Stores the operator's link order for successors.
    pub fn set_order(&self, order: u64) {
        Layout::set_order(&self.memory, order);
    }

    /// Returns hashed names of the sites that an operator has switched off, in this process or a
    /// predecessor.
    pub fn off(&self) -> Vec<u64> {
        Layout::off(&self.memory).collect()
    }

    /// Stores a site's switch for successors. Returns whether there was room.
    pub fn set_off(&self, name: u64, off: bool) -> bool {
        Layout::set_off(&self.memory, name, off)
    }

    /// Returns the outages recorded by this process and its predecessors. `since_boot` is the
    /// current time by the clock of `keep_outage`.
    pub fn outages(&self, since_boot: Duration) -> Past {
        Layout::known(&self.memory).read(since_boot)
    }

    /// Stores the latest outage for successors. Call it when an outage begins and when it ends.
    pub(crate) fn keep_outage(&self, latest: &Latest, since_boot: Duration) {
        Layout::known(&self.memory).write(latest, since_boot);
    }

    /// Returns whether a gateway has ever answered this process or a predecessor.
    pub fn gateway_answers(&self, gateway: IpAddr) -> bool {
        Layout::known(&self.memory).gateway_answers(gateway)
    }

    /// Records for successors that a gateway has answered.
    pub(crate) fn keep_gateway(&self, gateway: IpAddr) {
        Layout::known(&self.memory).set_gateway(gateway);
    }

    /// Returns a key that exists only in this arena.
    pub fn seal(&self) -> Seal {
        Layout::seal(&self.memory)
    }

    /// Publishes how a tunnelled flow ends, before its slot becomes free.
    pub fn publish_ending(&self, ending: &Ending) {
        let number = self.next_ending.fetch_add(1, Relaxed);
        Layout::endings(&self.memory).write(number, ending);
    }

    /// Returns the last flows that ended with a peer, the oldest first. `peer` is the
    /// [hash](pep_core::arena::name_hash) of its name.
    pub fn endings(&self, peer: u64) -> impl Iterator<Item = Ending> {
        // Reading memory that was never written also allocates pages.
        let any = self.next_ending.load(Relaxed) != FIRST_ENDING;
        let of_peer = |ending: &Ending| ending.peer == peer;
        let endings = any.then(|| Layout::endings(&self.memory).read(of_peer));
        let endings = endings.into_iter().flatten();
        endings.map(|(_, ending)| ending)
    }

    /// Returns the published record of the flow in a slot, if there is a consistent one.
    pub fn record(&self, slot: u32) -> Option<Record> {
        self.header(slot).read()
    }

    /// Returns how many bytes of `range`, in one direction of a tunnelled flow, are in its chunks.
    /// The other bytes are stored elsewhere.
    pub fn in_chunks(&self, slot: u32, direction: Direction, range: Range<u64>) -> u64 {
        let words = (0..self.layout.chunks()).map(|chunk| {
            let offset = self.layout.chunk(slot, direction, chunk);
            self.memory.load(offset)
        });
        // A map may begin at any position: chunks lie on no common grid.
        let starts = words.filter_map(|word| word.checked_sub(1));
        let held = starts.map(|start| {
            let end = start.saturating_add(CHUNK);
            range.end.min(end).saturating_sub(range.start.max(start))
        });
        held.sum()
    }

    /// Returns the slots with flows, of this process or a predecessor.
    pub fn occupied(&self) -> Vec<u32> {
        let slots = 0..self.free.lock().untouched;
        slots.filter(|slot| self.header(*slot).has_flow()).collect()
    }

    /// Returns a slot in which a predecessor had a flow. Call it once for each
    /// [occupied](Self::occupied) slot, before any flow begins in this process.
    pub fn attach(self: &Arc<Self>, index: u32) -> Slot {
        Slot {
            arena: Arc::clone(self),
            index,
            // Unknown: assume that all of it has pages.
            used: [self.layout.extent_bytes(); 2],
            has_chunks: true,
        }
    }

    /// Returns the memfd, which outlives a crash of this process while another process holds it.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.memory.fd()
    }

    /// Returns whether a slot is free.
    pub(crate) fn has_free_slot(&self) -> bool {
        let free = self.free.lock();
        !(free.used.is_empty() && free.inherited.is_empty() && free.clean.is_empty())
    }

    /// Takes a slot for a flow; `None` when all are taken.
    pub(crate) fn take_slot(self: &Arc<Self>) -> Option<Slot> {
        let mut free = self.free.lock();
        let recent = free.used.pop();
        if recent.is_none()
            && let Some(index) = free.inherited.pop()
        {
            drop(free);
            let mut slot = self.attach(index);
            slot.clear();
            return Some(slot);
        }
        let (index, used) = recent.or_else(|| Some((free.clean.pop()?, [0; 2])))?;
        free.untouched = free.untouched.max(index + 1);
        Some(Slot {
            arena: Arc::clone(self),
            index,
            used,
            has_chunks: false,
        })
    }

    /// Releases the pages of up to `most` slots without a flow, so that one call is short. Call it
    /// periodically.
    pub fn sweep(self: &Arc<Self>, most: usize) {
        let (used, inherited): (Vec<_>, Vec<_>) = {
            let mut free = self.free.lock();
            let count = most.min(free.used.len());
            let inherited = (most - count).min(free.inherited.len());
            // The oldest ones: the newest may be taken again at once.
            (
                free.used.drain(..count).collect(),
                free.inherited.drain(..inherited).collect(),
            )
        };
        inherited
            .into_iter()
            .for_each(|index| drop(self.attach(index)));
        for (index, used) in used {
            for direction in Direction::ALL {
                self.punch_or_warn(index, direction, 0..used[direction as usize]);
            }
            self.free.lock().clean.push(index);
        }
    }

    fn header(&self, slot: u32) -> Header<'_, SharedMemory> {
        Header::new(&self.memory, self.layout.header(slot))
    }

    fn extent(&self, slot: u32, direction: Direction) -> usize {
        self.layout.extent(slot, direction)
    }

    /// Keeping the pages only wastes memory.
    fn punch_or_warn(&self, index: u32, direction: Direction, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let offset = self.extent(index, direction) + range.start as usize;
        let len = (range.end - range.start) as usize;
        if let Err(err) = self.memory.punch(offset, len) {
            tracing::warn!(error = %err, "cannot release memory of a flow's ring buffer: it stays allocated, otherwise harmless");
        }
    }
}

fn length(range: &Range<u64>) -> usize {
    (range.end - range.start) as usize
}
