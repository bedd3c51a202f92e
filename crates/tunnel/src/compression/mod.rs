//! Streams whose bytes are compressed on their way: what is put into them, and what comes out.
//!
//! ```text
//!   hosts' bytes    |------ parcel ------|- parcel -|-------- parcel --------|
//!                      packed by itself,               as it is, where it does
//!                      what was before it                   not shrink
//!                      being the dictionary
//!   stream          | 2n+1 | n bytes |...           | 2n | n bytes           |
//! ```
//!
//! What is at hand goes at once, as a parcel of its own, so nothing waits for more to come. As each parcel knows
//! the [`HISTORY`] before it, short messages profit from earlier ones. So the state of a direction is these bytes, at either end,
//! and all flows of a thread share one [`Codec`].
//!
//! - [`Packer`], [`Unpacker`], one direction of a stream
//! - [`Codec`], zstd

mod codec;
mod history;
mod pack;
mod skip;
#[cfg(test)]
mod tests;
mod unpack;

pub use codec::Codec;
pub use pack::{Packed, Packer};
pub use unpack::{UnpackError, Unpacker};

/// Bytes of hosts in a parcel, at most.
pub const PLAIN_MAX: usize = 32 << 10;

/// Bytes before a parcel that it may refer to.
pub const HISTORY: usize = 16 << 10;

/// What stands before a parcel takes so many bytes at most.
pub const HEADER_MAX: usize = 4;

/// A parcel takes so many bytes of a stream at most.
pub const BLOCK_MAX: usize = HEADER_MAX + PLAIN_MAX;

/// In the number before a parcel: it is packed.
const PACKED: u64 = 1;
