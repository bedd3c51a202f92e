//! What outlives the process: where the bytes of flows are in shared memory, what is written down of each
//! flow, and what a successor makes of it after a crash. Holds no memory and no sockets.
//!
//! - [`Layout`], where everything is
//! - [`Header`], what is written of a flow, in an order that is valid after every single store; [`Record`],
//!   the same as it is read
//! - [`Endings`], which tunnels' flows have ended of late, and how
//! - [`recover_direction`], how far a half really is, by the kernel's own counters
//!
//! ```text
//!   page 0        magic | version | slots | extent bytes | headers | tables | extents | generation | worker | order | endings,
//!                 at 128 the seal key (32 bytes), at 1024 what is known of the link (see `Known`)
//!   endings       32 bytes for each flow that is remembered (see `Endings`)
//!   headers       512 bytes per slot (see `Header`)
//!   chunk tables  two per slot, up then down: a word for each 64 KiB of the extent
//!   extents       two per slot, up then down
//! ```
//!
//! All numbers are words of 64 bits in the machine's order: the memory never leaves the machine.

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
    /// The word at an offset.
    fn load(&self, offset: usize) -> u64;
    /// Sets it.
    fn store(&self, offset: usize, value: u64);
}

/// The words from an offset on, by their distance from it.
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
