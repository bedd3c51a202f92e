//! The receiving side.

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

/// Restores lost data packets from the others of their block and its repair packets.
///
/// It computes only where data is missing and just enough packets are there; a block that loses
/// nothing costs a copy of its packets. Memory is taken as it is needed, up to what the
/// configuration allows, and used again; where it does not suffice the block that was begun first
/// gives way.
///
/// A packet costs at most the decoding of one block, which is k multiplications and additions of a packet
/// for each one restored: 128 of 128 packets of 1500 bytes take some milliseconds. One that shows
/// that the stream is another costs a look at all that is remembered.
///
/// # What it withstands
///
/// Whatever comes, nothing panics and memory stays within its bounds. Packets that contradict
/// others of their block are refused: the first ones are believed. A packet whose block number is
/// far from the newest (by more than half of [`memory`](DecoderConfig::memory)) is left alone; its
/// data is [`Arrival::Late`]. The third such packet in a row ahead, or the eighth behind, all near
/// each other, moves the decoder there: the link was away for long, or the encoder was started
/// again. So a stray number costs nothing, or one block in work if it is near, and two or seven
/// packets go by without protection when the stream really jumps. If an encoder is started again
/// with numbers that are still remembered, its block and all further ones take the place of the
/// remembered ones as soon as one packet is seen to differ: that whose number was the first to
/// arrive of its block before. Until then its packets look like duplicates, and what is restored
/// may be of both; so encoders should begin with random numbers.
///
/// Wrong *content* cannot be told from right: a forged repair packet gives wrong data, of which
/// only some is recognised by its impossible length or padding. **The caller authenticates packets
/// before they come here**, as the tunnel does.
///
/// # Fetching
///
/// Packets of one block at most are waiting to be fetched by
/// [`poll_recovered`](Decoder::poll_recovered); what is left of them when the next packet comes is
/// lost, and counted.
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
    /// With the fastest code of this machine.
    ///
    /// # Errors
    ///
    /// If a field of the configuration is out of range.
    pub fn new(config: &DecoderConfig) -> Result<Self, ConfigError> {
        Self::with_code(config, ReedSolomon::new())
    }
}

impl<C: ErasureCode> BlockDecoder<C> {
    /// With another code; the encoder must have the same.
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

    /// What it has done so far.
    #[must_use]
    pub fn stats(&self) -> DecoderStats {
        self.stats
    }

    /// How many blocks are in work.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.blocks.in_work()
    }

    /// How many packets of them are kept.
    #[must_use]
    pub fn packets(&self) -> usize {
        self.blocks.packets()
    }

    /// The bytes of memory that packets, restored packets and what is remembered of blocks take.
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

    /// Whether the number is one of the stream; moves with the stream where it jumps.
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

    /// Ends a block of which everything is there, and decodes one of which enough is there.
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
