//! Where the bytes of all flows are: one sparse memfd, mapped once. What is where in it, and in which order it
//! is written, says [`pep_core::arena`].
//!
//! Whoever holds the memfd and the sockets can carry on after a crash: positions may lag behind the kernel's
//! own counters by the one call that was under way, and by no more.

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

/// Why the memory that a predecessor has left is not used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It is not what this pepd uses.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// It cannot be mapped.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// The memory of all flows.
#[derive(Debug)]
pub struct Arena {
    memory: SharedMemory,
    layout: Layout,
    /// As [`Geometry::initial`].
    initial: u64,
    free: Mutex<FreeSlots>,
    /// The number of the next flow that ends.
    next_ending: AtomicU64,
}

/// Slots without a flow. The one freed last is taken first: its pages are in the cache.
#[derive(Debug)]
struct FreeSlots {
    /// With bytes that may still have pages.
    used: Vec<(u32, Used)>,
    /// Without pages.
    clean: Vec<u32>,
}

/// The number of the first flow that ends.
const FIRST_ENDING: u64 = 1;

/// How much of each extent may have pages.
type Used = [u64; 2];

impl Arena {
    /// An arena without flows.
    ///
    /// # Errors
    /// When there is no memory or address space for it.
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
            clean: (0..slots).rev().collect(),
        };
        Ok(Self::begin(memory, layout, initial, free, FIRST_ENDING))
    }

    /// The arena that a predecessor has left, with its flows: their slots are to be [attached](Self::attach).
    ///
    /// # Errors
    /// When it is none, or one of another version, or cannot be mapped.
    pub fn open(fd: OwnedFd, initial: u64) -> Result<Arc<Self>, OpenError> {
        let memory = SharedMemory::open(fd)?;
        let layout = Layout::read(&memory, memory.len())?;
        // Slots were trimmed before they became free.
        let has_flow = |slot: &u32| Header::new(&memory, layout.header(*slot)).has_flow();
        let used = (0..layout.slots()).rev().filter(|slot| !has_flow(slot));
        let free = FreeSlots {
            used: used.map(|slot| (slot, [initial; 2])).collect(),
            clean: Vec::new(),
        };
        let endings = Layout::endings(&memory).read(|_| true);
        let next = endings.last().map(|(number, _)| number + 1);
        let next = next.unwrap_or(FIRST_ENDING);
        Ok(Self::begin(memory, layout, initial, free, next))
    }

    /// What the memfd is called, as /proc shows it.
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

    /// Ends what this process does to the arena when the fuse burns.
    #[cfg(any(test, feature = "testing"))]
    pub fn end_with(&self, fuse: &Arc<pepd_sys::fuse::Fuse>) {
        self.memory.end_with(fuse);
    }

    /// How much there is room for.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// How many processes have used it one after the other, this one included.
    pub fn generation(&self) -> u64 {
        Layout::generation(&self.memory)
    }

    /// What an operator has said of the link, to whichever process ([`pep_core::outage::Order`]).
    pub fn order(&self) -> u64 {
        Layout::order(&self.memory)
    }

    /// Keeps that for the processes to come.
    pub fn set_order(&self, order: u64) {
        Layout::set_order(&self.memory, order);
    }

    /// Sites that an operator has switched off, by their hashed names, to whichever process.
    pub fn off(&self) -> Vec<u64> {
        Layout::off(&self.memory).collect()
    }

    /// Keeps that for the processes to come. Returns whether there was room.
    pub fn set_off(&self, name: u64, off: bool) -> bool {
        Layout::set_off(&self.memory, name, off)
    }

    /// The outages that are known of, to whichever process; `since_boot` is now, by the clock of
    /// `keep_outage`.
    pub fn outages(&self, since_boot: Duration) -> Past {
        Layout::known(&self.memory).read(since_boot)
    }

    /// Keeps the last one for the processes to come: to be called when it begins, and when it is over.
    pub(crate) fn keep_outage(&self, latest: &Latest, since_boot: Duration) {
        Layout::known(&self.memory).write(latest, since_boot);
    }

    /// Whether that gateway has ever answered, whichever process.
    pub fn gateway_answers(&self, gateway: IpAddr) -> bool {
        Layout::known(&self.memory).gateway_answers(gateway)
    }

    /// Keeps for the processes to come that it has.
    pub(crate) fn keep_gateway(&self, gateway: IpAddr) {
        Layout::known(&self.memory).set_gateway(gateway);
    }

    /// A key that is nowhere but here.
    pub fn seal(&self) -> Seal {
        Layout::seal(&self.memory)
    }

    /// Publishes how a flow in a tunnel ends, before its slot is free.
    pub fn publish_ending(&self, ending: &Ending) {
        let number = self.next_ending.fetch_add(1, Relaxed);
        Layout::endings(&self.memory).write(number, ending);
    }

    /// The flows that have ended last of those with a peer, by the [hash](pep_core::arena::name_hash) of its name; the oldest one first.
    pub fn endings(&self, peer: u64) -> impl Iterator<Item = Ending> {
        // To read of memory that was never written takes pages, too.
        let any = self.next_ending.load(Relaxed) != FIRST_ENDING;
        let of_peer = |ending: &Ending| ending.peer == peer;
        let endings = any.then(|| Layout::endings(&self.memory).read(of_peer));
        let endings = endings.into_iter().flatten();
        endings.map(|(_, ending)| ending)
    }

    /// What is published of the flow in a slot, if there is one and it makes sense.
    pub fn record(&self, slot: u32) -> Option<Record> {
        self.header(slot).read()
    }

    /// How many bytes of a half of a flow in a tunnel are in its chunks, of those of this range. The others are elsewhere.
    pub fn in_chunks(&self, slot: u32, direction: Direction, range: Range<u64>) -> u64 {
        let words = (0..self.layout.chunks()).map(|chunk| {
            let offset = self.layout.chunk(slot, direction, chunk);
            self.memory.load(offset)
        });
        let starts = words.filter(|word| *word != 0).map(|word| word & !1);
        let held = starts.map(|start| {
            let end = (start / CHUNK + 1) * CHUNK;
            range.end.min(end).saturating_sub(range.start.max(start))
        });
        held.sum()
    }

    /// Slots in which a predecessor had flows.
    pub fn occupied(&self) -> Vec<u32> {
        let slots = 0..self.layout.slots();
        slots.filter(|slot| self.header(*slot).has_flow()).collect()
    }

    /// A slot in which a predecessor had a flow. To be called once for each that is
    /// [occupied](Self::occupied), before any flow begins here.
    pub fn attach(self: &Arc<Self>, index: u32) -> Slot {
        Slot {
            arena: Arc::clone(self),
            index,
            // Nobody knows.
            used: [self.layout.extent_bytes(); 2],
            has_chunks: true,
        }
    }

    /// The memfd that outlives a crash of whoever else holds it.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.memory.fd()
    }

    /// A slot for a flow, or `None` when all are taken.
    pub(crate) fn take_slot(self: &Arc<Self>) -> Option<Slot> {
        let mut free = self.free.lock();
        let recent = free.used.pop();
        let (index, used) = recent.or_else(|| Some((free.clean.pop()?, [0; 2])))?;
        Some(Slot {
            arena: Arc::clone(self),
            index,
            used,
            has_chunks: false,
        })
    }

    /// Gives back the pages of slots without a flow, of up to `most` of them: so that a call is
    /// short. To be called now and then.
    pub fn sweep(&self, most: usize) {
        let used: Vec<_> = {
            let mut free = self.free.lock();
            let count = most.min(free.used.len());
            // The oldest ones; the newest may be taken again at once.
            free.used.drain(..count).collect()
        };
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

fn length(range: &Range<u64>) -> usize {
    (range.end - range.start) as usize
}
