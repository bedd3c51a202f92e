//! Configuration of block encoder and decoder.

use std::time::Duration;

pub use crate::scheme::ConfigError;
use crate::{overhead::Overhead, scheme::in_range, symbol};

/// Maximum sensible block time: after a longer wait a receiver would rather request a
/// retransmission, or a user notices.
pub const BLOCK_TIME_MAX: Duration = Duration::from_millis(20);

/// Returns the block time for a link of this round-trip time: an eighth of it, at most
/// [`BLOCK_TIME_MAX`]. So packets recovered at the end of a block are not much later than those
/// received.
#[must_use]
pub fn block_time(rtt: Duration) -> Duration {
    (rtt / 8).min(BLOCK_TIME_MAX)
}

/// Configuration of a [`BlockEncoder`](super::BlockEncoder).
///
/// The encoder takes at most `depth + max(depth, kept)` times the memory of a block, which is
/// `payload_max + 2` bytes for each of its data and repair packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncoderConfig {
    /// Data packets of a full block, 1 to 255. Default: 20. A longer block protects better with the
    /// same overhead, but recovers a lost packet later.
    pub k: u8,
    /// Number of interleaved blocks, 1 to 256. Default: 1, no interleaving. A burst of losses as
    /// long as the depth costs each block one packet, but all wait for the last.
    pub depth: usize,
    /// Maximum time from the first packet to the end of a block that has not filled up; for
    /// interleaved blocks, from the first packet of all. Default: 20 ms. See [`block_time`]; with
    /// interleaving, allow for the time that `depth` times `k` packets take.
    pub block_time: Duration,
    /// Longest data packet, in bytes, 1 to 65,535. Default: 1500. A repair packet is up to two
    /// bytes longer.
    pub payload_max: usize,
    /// Closed blocks to store, so that [`more`](super::BlockEncoder::more) can compute further
    /// rows; no fewer than `depth` are stored. 0 to 65,536. Default: 0.
    pub kept: usize,
    /// Repair packets per block. Default: (20, 6). See
    /// [`set_overhead`](crate::scheme::Encoder::set_overhead).
    pub overhead: Overhead,
    /// Number of the first block. Default: 0. An encoder that replaces another one in front of the
    /// same decoder must start with a random number, or one far from all that the other has used.
    /// Otherwise the decoder may take new packets for duplicates of remembered blocks, until it
    /// notices that they differ.
    pub first_block: u32,
}

impl Default for EncoderConfig {
    fn default() -> Self {
        Self {
            k: 20,
            depth: 1,
            block_time: BLOCK_TIME_MAX,
            payload_max: 1500,
            kept: 0,
            overhead: Overhead::of_block(20, 6),
            first_block: 0,
        }
    }
}

impl EncoderConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        in_range("k", self.k.into(), 1, 255)?;
        in_range("depth", self.depth, 1, 256)?;
        in_range("payload_max", self.payload_max, 1, symbol::PACKET_MAX)?;
        in_range("kept", self.kept, 0, 1 << 16)
    }
}

/// Configuration of a [`BlockDecoder`](super::BlockDecoder).
///
/// The decoder takes at most `packets + 255` times `payload_max + 2` bytes, and 64 bytes for each
/// block that it remembers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecoderConfig {
    /// Longest data packet, in bytes, 1 to 65,535. Default: 1500.
    pub payload_max: usize,
    /// Maximum number of blocks in work, 1 to 4096. Default: 64. Should be the number of
    /// interleaved blocks, and as many again for reordering. A new block replaces the oldest.
    pub blocks: usize,
    /// Maximum number of stored packets of these blocks, 256 to 2^24. Default: 2048.
    pub packets: usize,
    /// Blocks whose delivered packets are remembered, 2 to 2^20, rounded up to a power of two.
    /// Default: 1024. Blocks up to half as far before or behind the newest one count as the same
    /// stream, so it should be several times [`blocks`](Self::blocks). With fewer, interleaved
    /// packets are late.
    pub memory: usize,
}

impl Default for DecoderConfig {
    fn default() -> Self {
        Self {
            payload_max: 1500,
            blocks: 64,
            packets: 2048,
            memory: 1024,
        }
    }
}

impl DecoderConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        in_range("payload_max", self.payload_max, 1, symbol::PACKET_MAX)?;
        in_range("blocks", self.blocks, 1, 4096)?;
        in_range("packets", self.packets, 256, 1 << 24)?;
        in_range("memory", self.memory, 2, 1 << 20)
    }
}
