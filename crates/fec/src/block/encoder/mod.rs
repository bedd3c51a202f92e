//! Sending side.

mod block;

use std::{collections::VecDeque, time::Duration};

use self::block::Block;
use super::{
    config::{ConfigError, EncoderConfig},
    stats::EncoderStats,
};
use crate::{
    code::{ErasureCode, ReedSolomon},
    overhead::Overhead,
    scheme::{Encoder, TooLong},
    serial,
    wire::Header,
};

/// Block encoder: numbers data packets and makes the repair packets of their blocks. See [the
/// module](super) for when.
///
/// Data packets are never held back: their header is returned at once, and they must be sent before
/// the next [`poll_repair`](Encoder::poll_repair). Repair packets may be fetched as slowly as the
/// link takes them. They are computed when the first one of a block is fetched. They are lost (and
/// counted) if `depth` or more blocks have started since their own closed.
///
/// Memory is allocated when a block is first needed, and reused for later ones.
#[derive(Debug)]
pub struct BlockEncoder<C = ReedSolomon> {
    code: C,
    config: EncoderConfig,
    /// Newest blocks, by sequence number modulo their number. Block numbers are sequence numbers
    /// that start with the first block's, cut to 32 bits.
    blocks: Box<[Block]>,
    /// Sequence number of the first open block.
    open: u64,
    /// Sequence number of the next block to open.
    next: u64,
    /// Number of packets of the open blocks.
    packets: usize,
    /// Time at which the open blocks close.
    deadline: Option<Duration>,
    /// Blocks of the repair packets that are due, in the order of sending.
    due: VecDeque<u64>,
    stats: EncoderStats,
}

/// Reason why a block closes.
#[derive(Clone, Copy)]
enum Reason {
    Full,
    Time,
    Drained,
}

/// Error for more rows of a block that is still open, or no longer stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("block {0} is not a stored closed block")]
pub struct NotKept(pub u32);

impl BlockEncoder {
    /// Returns an encoder with the fastest code of this machine.
    ///
    /// # Errors
    ///
    /// If a field of the configuration is out of range.
    pub fn new(config: EncoderConfig) -> Result<Self, ConfigError> {
        Self::with_code(config, ReedSolomon::new())
    }
}

impl<C: ErasureCode> BlockEncoder<C> {
    /// Returns an encoder with another code; the decoder must have the same.
    ///
    /// # Errors
    ///
    /// If a field of the configuration is out of range.
    pub fn with_code(config: EncoderConfig, code: C) -> Result<Self, ConfigError> {
        config.check()?;
        let blocks = config.depth + config.kept.max(config.depth);
        Ok(Self {
            code,
            blocks: (0..blocks).map(|_| Block::default()).collect(),
            config,
            open: 0,
            next: 0,
            packets: 0,
            deadline: None,
            due: VecDeque::new(),
            stats: EncoderStats::default(),
        })
    }

    /// Makes `rows` further repair packets of a closed block due, after those already due. Returns
    /// their number: fewer where the code has no more rows.
    ///
    /// # Errors
    ///
    /// If the block is still open, or no longer stored.
    pub fn more(&mut self, block: u32, rows: usize) -> Result<usize, NotKept> {
        let age = serial::distance(block, self.number(self.open));
        let kept = self.blocks.len() as u64 - (self.next - self.open);
        let sequence = u64::try_from(age)
            .ok()
            .filter(|age| (1..=kept).contains(age))
            .and_then(|age| self.open.checked_sub(age))
            .ok_or(NotKept(block))?;
        let granted = self.block(sequence).grant(rows);
        self.due.extend(std::iter::repeat_n(sequence, granted));
        self.stats.repairs_more += granted as u64;
        Ok(granted)
    }

    /// Counters since construction.
    #[must_use]
    pub fn stats(&self) -> EncoderStats {
        self.stats
    }

    /// Bytes of memory of packets and repair packets. Grows until each block has been used, with
    /// its maximum number of rows, once.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.blocks.iter().map(Block::memory).sum()
    }

    fn number(&self, sequence: u64) -> u32 {
        self.config.first_block.wrapping_add(sequence as u32)
    }

    fn block(&mut self, sequence: u64) -> &mut Block {
        let blocks = self.blocks.len() as u64;
        &mut self.blocks[(sequence % blocks) as usize]
    }

    /// Returns the block of the next packet; the first `depth` packets open one each.
    fn turn(&mut self) -> u64 {
        if self.packets >= self.config.depth {
            return self.open + (self.packets % self.config.depth) as u64;
        }
        let sequence = self.next;
        self.next += 1;
        let dropped = self.block(sequence).open();
        if dropped > 0 {
            let gone = sequence - self.blocks.len() as u64;
            self.due.retain(|due| *due != gone);
            self.stats.repairs_dropped += dropped as u64;
        }
        sequence
    }

    /// Closes all open blocks and queues their rows, row by row.
    fn close(&mut self, reason: Reason) {
        let open = self.open..self.next;
        let mut rows = 0;
        for sequence in open.clone() {
            let packets = self.block(sequence).packets();
            let overhead = self.config.overhead.rows(packets);
            self.block(sequence).close(overhead);
            rows = rows.max(overhead);
        }
        for row in 0..rows {
            for sequence in open.clone() {
                if row < self.block(sequence).overhead() {
                    self.due.push_back(sequence);
                }
            }
        }
        let counter = match reason {
            Reason::Full => &mut self.stats.closed_full,
            Reason::Time => &mut self.stats.closed_time,
            Reason::Drained => &mut self.stats.closed_drained,
        };
        *counter += self.next - self.open;
        self.open = self.next;
        self.packets = 0;
        self.deadline = None;
    }
}

impl<C: ErasureCode> Encoder for BlockEncoder<C> {
    fn handle_data(&mut self, packet: &[u8], now: Duration) -> Result<Header, TooLong> {
        let (len, max) = (packet.len(), self.config.payload_max);
        if len > max {
            self.stats.too_long += 1;
            return Err(TooLong { len, max });
        }
        let sequence = self.turn();
        let (k, depth) = (usize::from(self.config.k), self.config.depth);
        let index = self.block(sequence).push(packet, k, max);
        let block = self.number(sequence);
        self.packets += 1;
        self.stats.data += 1;
        self.stats.data_bytes += len as u64;
        if self.packets == k * depth {
            self.close(Reason::Full);
        } else if self.deadline.is_none() {
            self.deadline = Some(now.saturating_add(self.config.block_time));
        }
        Ok(Header::BlockData { block, index })
    }

    fn handle_drained(&mut self, _now: Duration) {
        if self.packets > 0 {
            self.close(Reason::Drained);
        }
    }

    fn handle_timeout(&mut self, now: Duration) {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.close(Reason::Time);
        }
    }

    fn poll_timeout(&self) -> Option<Duration> {
        self.deadline
    }

    fn poll_repair(&mut self) -> Option<(Header, &[u8])> {
        let sequence = self.due.pop_front()?;
        let number = self.number(sequence);
        let blocks = self.blocks.len() as u64;
        let block = &mut self.blocks[(sequence % blocks) as usize];
        let (k, h) = (block.packets() as u8, block.overhead() as u8);
        let (row, symbol) = block.next_row(&mut self.code);
        self.stats.repairs += 1;
        self.stats.repair_bytes += symbol.len() as u64;
        let header = Header::BlockRepair {
            block: number,
            row: row as u8,
            k,
            h,
        };
        Some((header, symbol))
    }

    fn set_overhead(&mut self, overhead: Overhead) {
        self.config.overhead = overhead;
    }
}
