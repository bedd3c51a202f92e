//! Receiving side.

mod blocks;
mod horizon;
mod pool;
mod record;
mod restored;
mod work;

use self::{
    blocks::Blocks,
    horizon::{Horizon, Place},
    record::State,
    restored::Restored,
    work::Number,
};
use super::{
    config::{ConfigError, DecoderConfig},
    stats::DecoderStats,
};
use crate::{
    code::{ErasureCode, ReedSolomon, SYMBOLS_MAX},
    scheme::{Arrival, Decoder, Refused},
    symbol::LENGTH_BYTES,
    wire::Header,
};

/// Block decoder: restores lost data packets from the other packets of their block.
///
/// It computes only where data is missing and just enough packets have arrived; a block without
/// losses costs a copy of its packets. Memory is allocated as needed, up to the configured maximum,
/// and reused; where it does not suffice, the block that was started first is dropped.
///
/// A packet costs at most the decoding of one block: k multiplications and additions of a packet
/// for each one restored. 128 of 128 packets of 1500 bytes take some milliseconds. A packet that
/// shows a new stream costs a scan of all remembered blocks.
///
/// # Robustness
///
/// No input causes a panic or exceeds the memory bounds. Packets that contradict earlier ones of
/// their block are refused. A packet whose block number is far from the newest (by more than half
/// of [`memory`](DecoderConfig::memory)) is ignored; its data is [`Arrival::Late`]. The third such
/// packet in a row ahead, or the eighth behind, all near each other, moves the decoder there: after
/// a long outage, or a restart of the encoder. So a stray number costs nothing, or one block in
/// work if it is near. Two or seven packets pass without protection when the stream really jumps.
///
/// An encoder may restart with numbers that are still remembered. Its blocks then replace the
/// remembered ones as soon as one packet is seen to differ: the one whose number was the first to
/// arrive of its block before. Until then its packets look like duplicates, and restored packets
/// may mix both. So encoders should start with random numbers.
///
/// Wrong *content* is not detected: a forged repair packet gives wrong data, of which only some has
/// an impossible length or padding. **The caller authenticates packets before they come here**, as
/// the tunnel does.
///
/// # Fetching
///
/// Packets of at most one block wait to be fetched by [`poll_recovered`](Decoder::poll_recovered).
/// Those left when the next packet comes are lost, and counted.
#[derive(Debug)]
pub struct BlockDecoder<C = ReedSolomon> {
    code: C,
    payload_max: usize,
    horizon: Horizon,
    blocks: Blocks,
    restored: Restored,
    stats: DecoderStats,
}

impl BlockDecoder {
    /// Returns a decoder with the fastest code of this machine.
    ///
    /// # Errors
    ///
    /// If a field of the configuration is out of range.
    pub fn new(config: &DecoderConfig) -> Result<Self, ConfigError> {
        Self::with_code(config, ReedSolomon::new())
    }
}

impl<C: ErasureCode> BlockDecoder<C> {
    /// Returns a decoder with another code; the encoder must have the same.
    ///
    /// # Errors
    ///
    /// If a field of the configuration is out of range.
    pub fn with_code(config: &DecoderConfig, code: C) -> Result<Self, ConfigError> {
        config.check()?;
        let blocks = Blocks::new(config);
        Ok(Self {
            code,
            payload_max: config.payload_max,
            horizon: Horizon::new(blocks.remembered() / 2),
            blocks,
            restored: Restored::default(),
            stats: DecoderStats::default(),
        })
    }

    /// Counters since construction.
    #[must_use]
    pub fn stats(&self) -> DecoderStats {
        self.stats
    }

    /// Number of blocks in work.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.blocks.in_work()
    }

    /// Number of their stored packets.
    #[must_use]
    pub fn packets(&self) -> usize {
        self.blocks.packets()
    }

    /// Bytes of memory of packets, restored packets and remembered blocks.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.blocks.memory() + self.restored.memory()
    }

    fn handle_data(&mut self, block: u32, index: u8, packet: &[u8]) -> Result<Arrival, Refused> {
        check_most("index", index, u8::MAX - 1)?;
        if packet.len() > self.payload_max {
            return Err(Refused::Length(packet.len()));
        }
        if !self.near(block) {
            self.stats.late += 1;
            return Ok(Arrival::Late);
        }
        let newest = self.horizon.newest().unwrap_or(block);
        if self.blocks.restart(block, newest, index, packet) {
            self.stats.restarted += 1;
        }
        let record = self.blocks.open(block, &mut self.stats);
        if record.k > 0 && index >= record.k {
            return Err(contradiction("index", index.into()));
        }
        if record.seen.contains(index) {
            self.stats.duplicates += 1;
            return Ok(Arrival::Duplicate);
        }
        if let State::InWork(slot) = record.state {
            if !self.blocks.work(slot).fits_data(packet.len()) {
                return Err(contradiction("length", packet.len() as u32));
            }
            let stats = &mut self.stats;
            self.blocks.keep(slot, Number::Data(index), packet, stats);
        }
        self.blocks.open(block, &mut self.stats).see(index, packet);
        self.stats.data += 1;
        self.progress(block);
        Ok(Arrival::Data)
    }

    fn handle_repair(
        &mut self,
        (block, row, k): (u32, u8, u8),
        symbol: &[u8],
    ) -> Result<Arrival, Refused> {
        if k == 0 {
            return Err(contradiction("k", 0));
        }
        check_most("row", row, u8::MAX - k)?;
        if !(LENGTH_BYTES..=self.payload_max + LENGTH_BYTES).contains(&symbol.len()) {
            return Err(Refused::Length(symbol.len()));
        }
        if !self.near(block) {
            self.stats.repairs_far += 1;
            return Ok(self.count_repair(false));
        }
        let record = self.blocks.open(block, &mut self.stats);
        if (record.k > 0 && record.k != k) || record.seen.end() > k.into() {
            return Err(contradiction("k", k.into()));
        }
        let State::InWork(slot) = record.state else {
            record.k = k;
            return Ok(self.count_repair(false));
        };
        let work = self.blocks.work(slot);
        if !work.fits_repair(symbol.len()) {
            return Err(contradiction("length", symbol.len() as u32));
        }
        let number = k + row;
        if work.has_row(number) {
            return Ok(self.count_repair(false));
        }
        let record = self.blocks.open(block, &mut self.stats);
        record.k = k;
        let complete = record.complete();
        if !complete {
            let stats = &mut self.stats;
            self.blocks.keep(slot, Number::Row(number), symbol, stats);
        }
        self.progress(block);
        Ok(self.count_repair(!complete))
    }

    fn count_repair(&mut self, of_use: bool) -> Arrival {
        self.stats.repairs += 1;
        self.stats.repairs_spare += u64::from(!of_use);
        Arrival::Repair
    }

    /// Reports whether the number is part of the stream; follows the stream where it jumps.
    fn near(&mut self, block: u32) -> bool {
        match self.horizon.place(block) {
            Place::Near => true,
            Place::Far => false,
            Place::Moved => {
                self.blocks.forget(&mut self.stats);
                self.stats.resyncs += 1;
                true
            }
        }
    }

    /// Ends a complete block, and decodes one that has enough packets.
    fn progress(&mut self, block: u32) {
        let record = self.blocks.open(block, &mut self.stats);
        let (k, complete) = (usize::from(record.k), record.complete());
        let State::InWork(slot) = record.state else {
            return;
        };
        if complete {
            self.blocks.end(slot);
        } else if k > 0 && self.blocks.work(slot).packets() >= k {
            self.decode(block, slot);
        }
    }

    fn decode(&mut self, block: u32, slot: u16) {
        let record = self.blocks.open(block, &mut self.stats);
        let (k, seen) = (record.k, record.seen);
        let mut lost = [0; SYMBOLS_MAX];
        let numbers = (0..k).filter(|index| !seen.contains(*index));
        let missing = lost
            .iter_mut()
            .zip(numbers)
            .map(|(lost, n)| *lost = n)
            .count();
        let lost = &lost[..missing];

        let mut received: [(u8, &[u8]); SYMBOLS_MAX] = [(0, &[]); SYMBOLS_MAX];
        let (packets, length) = self.blocks.symbols(slot, &mut received);
        self.restored.begin(block, lost, length);
        let mut outputs = self.restored.outputs();
        let outputs = &mut outputs[..missing];
        self.code
            .decode(k.into(), &received[..packets], lost, outputs)
            .expect("k different symbols of one length");

        if self.restored.sensible() {
            let record = self.blocks.open(block, &mut self.stats);
            for index in lost {
                record.seen.insert(*index);
            }
            self.stats.recovered += missing as u64;
        } else {
            self.restored.clear();
            self.stats.corrupt_blocks += 1;
        }
        self.blocks.end(slot);
    }
}

impl<C: ErasureCode> Decoder for BlockDecoder<C> {
    fn handle(&mut self, header: Header, payload: &[u8]) -> Result<Arrival, Refused> {
        self.stats.recovered_dropped += self.restored.waiting() as u64;
        self.restored.clear();
        let arrival = match header {
            Header::BlockData { block, index } => self.handle_data(block, index, payload),
            Header::BlockRepair { block, row, k, .. } => {
                self.handle_repair((block, row, k), payload)
            }
            Header::WindowData { .. } | Header::WindowRepair { .. } => Err(Refused::Scheme),
        };
        if let Err(refused) = arrival {
            *match refused {
                Refused::Scheme => &mut self.stats.refused_scheme,
                Refused::Length(_) => &mut self.stats.refused_length,
                Refused::Contradiction { .. } => &mut self.stats.refused_contradiction,
                Refused::TooMany { .. } => &mut self.stats.refused_too_many,
            } += 1;
        }
        arrival
    }

    fn poll_recovered(&mut self) -> Option<(Header, &[u8])> {
        let (block, index, packet) = self.restored.fetch()?;
        Some((Header::BlockData { block, index }, packet))
    }
}

fn check_most(field: &'static str, value: u8, max: u8) -> Result<(), Refused> {
    if value <= max {
        return Ok(());
    }
    Err(Refused::TooMany {
        field,
        value: value.into(),
        max: max.into(),
    })
}

fn contradiction(field: &'static str, value: u32) -> Refused {
    Refused::Contradiction { field, value }
}
