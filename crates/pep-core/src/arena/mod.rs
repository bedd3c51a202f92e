//! State that outlives the process: flow bytes in shared memory, records of each flow, and recovery
//! by a successor after a crash. Holds no memory and no sockets.
//!
//! - [`Layout`], offsets of all parts
//! - [`Header`], writer of a flow's record, in an order that is valid after every single store;
//!   [`Record`], the record as read
//! - [`Endings`], recently ended flows of tunnels
//! - [`recover_direction`], the true position of a direction, by the kernel's own counters
//!
//! ```text
//!   page 0        magic | version | slots | extent bytes | headers | tables | extents
//!                 | generation | worker | order | endings,
//!                 at 128 the seal key (32 bytes), at 1024 the state of the link (see `Known`)
//!   endings       32 bytes for each ended flow (see `Endings`)
//!   headers       512 bytes per slot (see `Header`)
//!   chunk tables  two per slot, up then down: a word for each 64 KiB of the extent
//!   extents       two per slot, up then down
//! ```
//!
//! All numbers are words of 64 bits in the machine's byte order: the memory never leaves the
//! machine.

mod ended;
mod known;
mod layout;
mod record;
mod recover;
#[cfg(test)]
mod tests;

pub use crate::relay::DirectionRecord;
pub use ended::{ENDINGS, Ending, Endings};
pub use known::Known;
pub use layout::{FormatError, Layout, OFF_MAX, PAGE, Seal, VERSION};
pub use record::{Flags, Header, Identity, Kind, Record, SlotState, name_hash};
pub use recover::{Counters, Disagreement, RecoveredDirection, recover_direction};

/// Shared memory, as words at offsets that are multiples of eight.
///
/// Stores become visible, and survive the process, in the order in which they are made.
pub trait Words {
    /// Returns the word at an offset.
    fn load(&self, offset: usize) -> u64;
    /// Sets the word at an offset.
    fn store(&self, offset: usize, value: u64);
}

/// Words from an offset on, addressed relative to it.
#[derive(Debug, Clone, Copy)]
struct Part<'a, W> {
    words: &'a W,
    start: usize,
}

impl<W: Words> Words for Part<'_, W> {
    fn load(&self, offset: usize) -> u64 {
        self.words.load(self.start + offset)
    }

    fn store(&self, offset: usize, value: u64) {
        self.words.store(self.start + offset, value);
    }
}
