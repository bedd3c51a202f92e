//! Layout of the shared memory.

use super::{
    ended::{ENDING_BYTES, ENDINGS, Endings},
    known::{KNOWN_BYTES, Known},
};
use crate::{arena::Words, chunks::CHUNK, relay::Direction};

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Version of the layout.
pub const VERSION: u64 = 3;
/// "pepdaren" in ASCII.
const MAGIC: u64 = u64::from_be_bytes(*b"pepdaren");

/// Bytes of one header; eight cache lines.
const HEADER_BYTES: usize = 512;

const AT_MAGIC: usize = 0;
const AT_VERSION: usize = 8;
const AT_SLOTS: usize = 16;
const AT_EXTENT: usize = 24;
const AT_HEADERS: usize = 32;
const AT_TABLES: usize = 40;
const AT_EXTENTS: usize = 48;
const AT_GENERATION: usize = 56;
const AT_WORKER: usize = 64;
const AT_ORDER: usize = 72;
const AT_ENDINGS: usize = 80;
const AT_SEAL: usize = 128;
const AT_OFF: usize = 192;
const AT_KNOWN: usize = 1024;
const _: () = assert!(AT_OFF + 8 * OFF_MAX <= AT_KNOWN && AT_KNOWN + KNOWN_BYTES <= PAGE);

/// Maximum number of sites that are switched off.
pub const OFF_MAX: usize = 96;

/// A key that exists only in the memory of flows: data sealed with it is unreadable once that
/// memory is gone.
pub type Seal = [u8; 32];

/// Reason why existing memory is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Not an arena, or never completed.
    #[error("wrong magic number")]
    Magic,
    /// An arena of another version of pepd.
    #[error("layout version {found}, this pepd supports version {VERSION}")]
    Version {
        /// Version found.
        found: u64,
    },
    /// Inconsistent sizes and offsets.
    #[error("inconsistent sizes")]
    Sizes,
}

/// Offsets of all parts, computed from the number of flows and the bytes of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    slots: u32,
    extent: u64,
}

impl Layout {
    /// Returns the layout for `slots` flows with `extent` bytes in each direction; `None` when that
    /// exceeds the address space.
    ///
    /// # Panics
    /// Unless `extent` is a power of two and no less than a page.
    pub fn new(slots: u32, extent: u64) -> Option<Self> {
        assert!(extent.is_power_of_two() && extent >= PAGE as u64);
        let layout = Self { slots, extent };
        layout.checked_len()?;
        Some(layout)
    }

    /// Maximum number of flows.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes of each extent.
    pub fn extent_bytes(&self) -> u64 {
        self.extent
    }

    /// Chunks of each extent, each with a word in its table; 1 or more.
    pub fn chunks(&self) -> usize {
        self.extent.div_ceil(CHUNK) as usize
    }

    /// Total bytes.
    pub fn len(&self) -> usize {
        self.checked_len().expect("checked when it was made")
    }

    /// Always false: there is a first page.
    pub fn is_empty(&self) -> bool {
        false
    }

    fn checked_len(&self) -> Option<usize> {
        let slots = self.slots as usize;
        let tables = slots.checked_mul(2 * 8)?.checked_mul(self.chunks())?;
        let headers = slots.checked_mul(HEADER_BYTES)?;
        let extents = slots.checked_mul(2)?;
        let extents = extents.checked_mul(usize::try_from(self.extent).ok()?)?;
        let pages = headers.checked_add(tables)?;
        let pages = pages.checked_add(Self::headers() + 2 * PAGE)?;
        let len = pages.checked_add(extents)?;
        (len <= isize::MAX as usize).then(|| self.extents() + extents)
    }

    const fn headers() -> usize {
        (PAGE + ENDINGS * ENDING_BYTES).next_multiple_of(PAGE)
    }

    fn tables(&self) -> usize {
        (Self::headers() + self.slots as usize * HEADER_BYTES).next_multiple_of(PAGE)
    }

    fn extents(&self) -> usize {
        let tables = self.slots as usize * 2 * self.chunks() * 8;
        (self.tables() + tables).next_multiple_of(PAGE)
    }

    /// Offset of the header of a slot.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn header(&self, slot: u32) -> usize {
        assert!(slot < self.slots, "slot {slot} of {}", self.slots);
        Self::headers() + slot as usize * HEADER_BYTES
    }

    /// Offset of a word of the chunk table of one direction of a slot.
    ///
    /// # Panics
    /// When there is no such slot or chunk.
    pub fn chunk(&self, slot: u32, direction: Direction, chunk: usize) -> usize {
        assert!(slot < self.slots && chunk < self.chunks());
        let table = slot as usize * 2 + direction as usize;
        self.tables() + (table * self.chunks() + chunk) * 8
    }

    /// Offset of the extent of one direction of a slot.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn extent(&self, slot: u32, direction: Direction) -> usize {
        assert!(slot < self.slots, "slot {slot} of {}", self.slots);
        let extent = slot as usize * 2 + direction as usize;
        self.extents() + extent * self.extent as usize
    }

    /// Writes the first page of zeroed memory. The last store completes it.
    pub fn write(&self, words: &impl Words, seal: &Seal) {
        for (offset, value) in [
            (AT_VERSION, VERSION),
            (AT_SLOTS, self.slots.into()),
            (AT_EXTENT, self.extent),
            (AT_HEADERS, Self::headers() as u64),
            (AT_TABLES, self.tables() as u64),
            (AT_EXTENTS, self.extents() as u64),
            (AT_ENDINGS, PAGE as u64),
        ] {
            words.store(offset, value);
        }
        for (index, part) in seal.as_chunks().0.iter().enumerate() {
            words.store(AT_SEAL + 8 * index, u64::from_ne_bytes(*part));
        }
        words.store(AT_MAGIC, MAGIC);
    }

    /// Reads the layout of memory of `len` bytes that a predecessor left.
    ///
    /// # Errors
    /// When the memory is not a pepd's, of another version, or incomplete.
    pub fn read(words: &impl Words, len: usize) -> Result<Self, FormatError> {
        if len < PAGE || words.load(AT_MAGIC) != MAGIC {
            return Err(FormatError::Magic);
        }
        let found = words.load(AT_VERSION);
        if found != VERSION {
            return Err(FormatError::Version { found });
        }
        let slots = u32::try_from(words.load(AT_SLOTS)).map_err(|_| FormatError::Sizes)?;
        let extent = words.load(AT_EXTENT);
        let sane = extent.is_power_of_two() && extent >= PAGE as u64;
        let layout = sane.then(|| Self::new(slots, extent)).flatten();
        let layout = layout.ok_or(FormatError::Sizes)?;
        let offsets = [AT_ENDINGS, AT_HEADERS, AT_TABLES, AT_EXTENTS].map(|at| words.load(at));
        let expected = [PAGE, Self::headers(), layout.tables(), layout.extents()];
        let fits = offsets == expected.map(|at| at as u64) && layout.len() == len;
        fits.then_some(layout).ok_or(FormatError::Sizes)
    }

    /// The seal key.
    pub fn seal(words: &impl Words) -> Seal {
        let mut seal = Seal::default();
        for (index, part) in seal.as_chunks_mut().0.iter_mut().enumerate() {
            *part = words.load(AT_SEAL + 8 * index).to_ne_bytes();
        }
        seal
    }

    /// Operator's order for the link, for later processes ([`Order`](crate::outage::Order)).
    pub fn order(words: &impl Words) -> u64 {
        words.load(AT_ORDER)
    }

    /// Sets the operator's order.
    pub fn set_order(words: &impl Words, order: u64) {
        words.store(AT_ORDER, order);
    }

    /// Name hashes of the sites that an operator has switched off.
    pub fn off(words: &impl Words) -> impl Iterator<Item = u64> {
        let places = (0..OFF_MAX).map(|place| AT_OFF + 8 * place);
        places
            .map(|place| words.load(place))
            .filter(|name| *name != 0)
    }

    /// Switches a site off, or on again, by its name hash. One store, so that a crash leaves it
    /// done or not done. Returns whether the site is in the wanted state: only [`OFF_MAX`] sites
    /// can be off.
    pub fn set_off(words: &impl Words, name: u64, off: bool) -> bool {
        let mut places = (0..OFF_MAX).map(|place| AT_OFF + 8 * place);
        let found = places.clone().find(|place| words.load(*place) == name);
        match (found, off) {
            (Some(place), false) => words.store(place, 0),
            (None, true) => {
                let Some(free) = places.find(|place| words.load(*place) == 0) else {
                    return false;
                };
                words.store(free, name);
            }
            _ => {}
        }
        true
    }

    /// State of the link.
    pub fn known<W: Words>(words: &W) -> Known<'_, W> {
        Known::new(words, AT_KNOWN)
    }

    /// Recently ended flows.
    pub fn endings<W: Words>(words: &W) -> Endings<'_, W> {
        Endings::new(words, PAGE, ENDINGS)
    }

    /// Number of processes that have used the memory one after the other, including this one.
    pub fn generation(words: &impl Words) -> u64 {
        words.load(AT_GENERATION)
    }

    /// Records that a process starts to use the memory.
    pub fn begin_generation(words: &impl Words, process: u32) {
        words.store(AT_WORKER, process.into());
        words.store(AT_GENERATION, words.load(AT_GENERATION) + 1);
    }
}
