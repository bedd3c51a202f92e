//! Compression of streams.
//!
//! ```text
//!   hosts' bytes    |------- block ------|-- block -|-------- block ---------|
//!                      compressed, with the           stored, where it does
//!                      bytes before it as             not shrink
//!                      dictionary
//!   stream          | 2n+1 | n bytes |...           | 2n | n bytes           |
//! ```
//!
//! Available data is sent at once as a compression block of its own, so nothing waits for more.
//! Each block can refer to the [`HISTORY`] before it, so short messages profit from earlier ones.
//! These bytes are the only state of a direction, at either end. All flows of a thread share one
//! [`Codec`].
//!
//! - [`Packer`], [`Unpacker`]: one direction of a stream
//! - [`Codec`]: contexts of zstd
//! - [`Expansion`]: pace of decompressed bytes

mod codec;
mod expansion;
mod history;
mod pack;
mod skip;
#[cfg(test)]
mod tests;
mod unpack;

pub use codec::Codec;
pub use expansion::Expansion;
pub use pack::{Packed, Packer};
pub use unpack::{UnpackError, Unpacker};

/// Maximum uncompressed bytes of a compression block.
pub const PLAIN_MAX: usize = 32 << 10;

/// Bytes before a compression block that it may refer to.
pub const HISTORY: usize = 16 << 10;

/// Maximum length of a block header.
pub const HEADER_MAX: usize = 4;

/// Maximum length of a compression block in the stream.
pub const BLOCK_MAX: usize = HEADER_MAX + PLAIN_MAX;

/// Flag in the block header: the block is compressed.
const PACKED: u64 = 1;
