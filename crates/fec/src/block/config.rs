//! What encoder and decoder of blocks are made with.

use std::time::Duration;

pub use crate::scheme::ConfigError;
use crate::{overhead::Overhead, scheme::in_range, symbol};

/// The longest block time that makes sense: who waits longer for a lost packet would rather ask
/// for it again, or notices.
pub const BLOCK_TIME_MAX: Duration = Duration::from_millis(20);

/// The block time for a link of this round-trip time: an eighth of it, at most [`BLOCK_TIME_MAX`].
/// So what is recovered at the end of a block is not much later than what arrives at once.
#[must_use]
pub fn block_time(rtt: Duration) -> Duration {
    (rtt / 8).min(BLOCK_TIME_MAX)
}

/// What a [`BlockEncoder`](super::BlockEncoder) is made with.
///
/// It takes at most `depth + max(depth, kept)` times the memory of a block, which is
/// `payload_max + 2` bytes for each of its data and repair packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncoderConfig {
    /// Data packets of a full block, 1 to 255. Default: 20. With more of them the same overcode
    /// protects better, but a lost packet is recovered later.
    pub k: u8,
    /// How many blocks are filled in turn, 1 to 256. Default: 1, no interleaving. A burst of
    /// losses as long as the depth costs each block one packet, but all wait for the last.
    pub depth: usize,
    /// After how long since its first packet a block closes that has not filled up; interleaved
    /// ones since the first packet of all. Default: 20 ms. See [`block_time`]; where blocks are
    /// interleaved, allow for the time that `depth` times `k` packets take.
    pub block_time: Duration,
    /// The longest data packet, in bytes, 1 to 65,535. Default: 1500. A repair packet is up to two
    /// bytes longer.
    pub payload_max: usize,
    /// How many closed blocks are kept, so that more rows of them can be had
    /// ([`more`](super::BlockEncoder::more)); at least `depth` are. 0 to 65,536. Default: 0.
    pub kept: usize,
    /// How many repair packets follow a block. Default: (20, 6). See
    /// [`set_overhead`](crate::scheme::Encoder::set_overcode).
    pub overhead: Overhead,
    /// The number of the first block. Default: 0. An encoder that takes the place of another
    /// before the same decoder must begin with a random number, or with one that is far from all that
    /// the other has used: of blocks that the decoder remembers, new packets may otherwise be taken for
    /// duplicates, until it notices that they differ.
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

/// What a [`BlockDecoder`](super::BlockDecoder) is made with.
///
/// It takes at most `packets + 255` times `payload_max + 2` bytes, and 64 bytes for each block that
/// it remembers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecoderConfig {
    /// The longest data packet, in bytes, 1 to 65,535. Default: 1500.
    pub payload_max: usize,
    /// How many blocks are in work at most, 1 to 4096. Default: 64. At least as many as are
    /// interleaved, and as many again for reordering. When another begins, the oldest gives way.
    pub blocks: usize,
    /// How many packets of these blocks are kept at most, 256 to 2^24. Default: 2048.
    pub packets: usize,
    /// Of how many blocks it is remembered which packets have been passed on, 2 to 2^20, rounded
    /// up to a power of two. Default: 1024. Blocks up to half as far before or behind the newest
    /// one are taken to be of the same stream, so it should be several times
    /// [`blocks`](Self::blocks); with fewer, interleaved packets are late.
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
