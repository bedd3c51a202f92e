//! Where everything is.

use super::{
    ended::{ENDING_BYTES, ENDINGS, Endings},
    known::{KNOWN_BYTES, Known},
};
use crate::{arena::Words, chunks::CHUNK, relay::Direction};

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Changes with the layout.
pub const VERSION: u64 = 3;
/// "pepdaren" in ASCII.
const MAGIC: u64 = u64::from_be_bytes(*b"pepdaren");

/// Of one header; eight cache lines.
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

/// Sites that may be switched off at a time.
pub const OFF_MAX: usize = 96;

/// A key that exists in the memory of flows alone: what is sealed by it cannot be read once that is gone.
pub type Seal = [u8; 32];

/// Why memory that was found is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// It is something else, or was never completed.
    #[error("it does not begin as the memory of flows does")]
    Magic,
    /// Another pepd's.
    #[error("it has the layout of version {found}, this pepd knows version {VERSION}")]
    Version {
        /// The version found.
        found: u64,
    },
    /// Sizes and offsets do not fit together.
    #[error("its sizes contradict each other")]
    Sizes,
}

/// Where everything is, by how many flows there may be and how much each may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    slots: u32,
    extent: u64,
}

impl Layout {
    /// Of so many flows with so many bytes in each direction; `None` when that is more than there are
    /// addresses.
    ///
    /// # Panics
    /// Unless `extent` is a power of two of at least a page.
    pub fn new(slots: u32, extent: u64) -> Option<Self> {
        assert!(extent.is_power_of_two() && extent >= PAGE as u64);
        let layout = Self { slots, extent };
        layout.checked_len()?;
        Some(layout)
    }

    /// Flows at most.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes of each extent.
    pub fn extent_bytes(&self) -> u64 {
        self.extent
    }

    /// Chunks of each extent, for each of which its table has a word; at least 1.
    pub fn chunks(&self) -> usize {
        self.extent.div_ceil(CHUNK) as usize
    }

    /// Bytes of everything.
    pub fn len(&self) -> usize {
        self.checked_len().expect("checked when it was made")
    }

    /// Never: there is a first page.
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

    /// The header of a slot.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn header(&self, slot: u32) -> usize {
        assert!(slot < self.slots, "slot {slot} of {}", self.slots);
        Self::headers() + slot as usize * HEADER_BYTES
    }

    /// A word of the table of chunks of one direction of a slot.
    ///
    /// # Panics
    /// When there is no such slot or chunk.
    pub fn chunk(&self, slot: u32, direction: Direction, chunk: usize) -> usize {
        assert!(slot < self.slots && chunk < self.chunks());
        let table = slot as usize * 2 + direction as usize;
        self.tables() + (table * self.chunks() + chunk) * 8
    }

    /// The bytes of one direction of a slot.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn extent(&self, slot: u32, direction: Direction) -> usize {
        assert!(slot < self.slots, "slot {slot} of {}", self.slots);
        let extent = slot as usize * 2 + direction as usize;
        self.extents() + extent * self.extent as usize
    }

    /// Writes the first page of memory that is zero. With the last store it is complete.
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

    /// The layout of memory of `len` bytes that a predecessor has left.
    ///
    /// # Errors
    /// When it is not that of a pepd, of another version, or not complete.
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

    /// What an operator has said of the link, for the processes to come ([`Order`](crate::outage::Order)).
    pub fn order(words: &impl Words) -> u64 {
        words.load(AT_ORDER)
    }

    /// Another such word.
    pub fn set_order(words: &impl Words, order: u64) {
        words.store(AT_ORDER, order);
    }

    /// Names, hashed, of the sites that an operator has switched off.
    pub fn off(words: &impl Words) -> impl Iterator<Item = u64> {
        let places = (0..OFF_MAX).map(|place| AT_OFF + 8 * place);
        places
            .map(|place| words.load(place))
            .filter(|name| *name != 0)
    }

    /// Switches a site off, or on again, by its hashed name: one store, so that whoever crashes has done it or not. Returns whether it
    /// is as it was wanted: there is no room for more than [`OFF_MAX`].
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

    /// What is known of the link.
    pub fn known<W: Words>(words: &W) -> Known<'_, W> {
        Known::new(words, AT_KNOWN)
    }

    /// Which flows have ended last.
    pub fn endings<W: Words>(words: &W) -> Endings<'_, W> {
        Endings::new(words, PAGE, ENDINGS)
    }

    /// How many processes have used the memory one after the other, this one included.
    pub fn generation(words: &impl Words) -> u64 {
        words.load(AT_GENERATION)
    }

    /// A process begins to use the memory.
    pub fn begin_generation(words: &impl Words, process: u32) {
        words.store(AT_WORKER, process.into());
        words.store(AT_GENERATION, words.load(AT_GENERATION) + 1);
    }
}
