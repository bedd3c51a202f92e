//! Blocks in work or remembered.

use super::{
    super::{config::DecoderConfig, stats::DecoderStats},
    pool::Pool,
    record::{Record, State},
    work::{Number, Work},
};
use crate::{serial, symbol::LENGTH_BYTES};

/// Records of many blocks, and the packets of a few.
#[derive(Debug)]
pub(super) struct Blocks {
    /// Records by block number modulo their number, which is a power of two.
    records: Box<[Record]>,
    works: Box<[Work]>,
    pool: Pool,
    /// Number of blocks started.
    begun: u64,
}

impl Blocks {
    pub(super) fn new(config: &DecoderConfig) -> Self {
        let remembered = config.memory.next_power_of_two();
        Self {
            records: vec![Record::EMPTY; remembered].into(),
            works: (0..config.blocks).map(|_| Work::default()).collect(),
            pool: Pool::new(config.packets, LENGTH_BYTES + config.payload_max),
            begun: 0,
        }
    }

    /// Number of blocks remembered.
    pub(super) fn remembered(&self) -> u32 {
        self.records.len() as u32
    }

    /// Returns the record of a block, and starts the block if there is none.
    pub(super) fn open(&mut self, block: u32, stats: &mut DecoderStats) -> &mut Record {
        let place = self.place(block);
        if !self.records[place].is_of(block) {
            self.give_way(place, stats);
            self.begin(block, stats);
        }
        &mut self.records[place]
    }

    /// Checks whether this data packet certainly is of another block with the same number. If so,
    /// drops that block and those up to `newest`: the encoder has restarted, and will use their
    /// numbers again, too. Returns whether it did.
    pub(super) fn restart(&mut self, block: u32, newest: u32, index: u8, packet: &[u8]) -> bool {
        let record = &self.records[self.place(block)];
        let other = record.is_of(block) && record.contradicts(index, packet);
        if other {
            let ahead = serial::distance(block, newest).max(0).cast_unsigned();
            (0..=ahead).for_each(|ahead| self.forget_one(block.wrapping_add(ahead)));
        }
        other
    }

    fn forget_one(&mut self, block: u32) {
        let place = self.place(block);
        if !self.records[place].is_of(block) {
            return;
        }
        if let State::InWork(slot) = self.records[place].state {
            self.works[usize::from(slot)].end(&mut self.pool);
        }
        self.records[place] = Record::EMPTY;
    }

    pub(super) fn work(&self, slot: u16) -> &Work {
        &self.works[usize::from(slot)]
    }

    /// Stores a packet of the block in `slot`; where there is no room, drops others.
    pub(super) fn keep(
        &mut self,
        slot: u16,
        number: Number,
        packet: &[u8],
        stats: &mut DecoderStats,
    ) {
        let buffer = loop {
            if let Some(buffer) = self.pool.take() {
                break buffer;
            }
            let oldest = self.oldest(Some(slot));
            let (block, _) =
                oldest.expect("a block alone has fewer packets than there is room for");
            self.give_way(self.place(block), stats);
        };
        self.works[usize::from(slot)].keep(number, packet, buffer, &mut self.pool);
    }

    /// Writes the padded packets of the block in `slot` into `symbols`. Returns their number and
    /// length.
    pub(super) fn symbols<'a>(
        &'a mut self,
        slot: u16,
        symbols: &mut [(u8, &'a [u8])],
    ) -> (usize, usize) {
        let work = &self.works[usize::from(slot)];
        (work.packets(), work.symbols(&mut self.pool, symbols))
    }

    /// Ends work on a block; its delivered packets stay known.
    pub(super) fn end(&mut self, slot: u16) {
        let work = &mut self.works[usize::from(slot)];
        if let Some((block, _)) = work.begun() {
            work.end(&mut self.pool);
            let place = self.place(block);
            self.records[place].state = State::Over;
        }
    }

    /// Drops everything.
    pub(super) fn forget(&mut self, stats: &mut DecoderStats) {
        for place in 0..self.records.len() {
            self.give_way(place, stats);
        }
        self.records.fill(Record::EMPTY);
    }

    pub(super) fn in_work(&self) -> usize {
        let begun = self.works.iter().filter(|work| work.begun().is_some());
        begun.count()
    }

    pub(super) fn packets(&self) -> usize {
        self.pool.in_use()
    }

    pub(super) fn memory(&self) -> usize {
        self.pool.memory() + size_of_val(&*self.records)
    }

    fn place(&self, block: u32) -> usize {
        block as usize & (self.records.len() - 1)
    }

    fn begin(&mut self, block: u32, stats: &mut DecoderStats) {
        let free = self.works.iter().position(|work| work.begun().is_none());
        let slot = free.unwrap_or_else(|| {
            let (oldest, slot) = self.oldest(None).expect("one or more blocks are in work");
            self.give_way(self.place(oldest), stats);
            slot.into()
        });
        self.begun += 1;
        self.works[slot].begin(block, self.begun);
        let place = self.place(block);
        self.records[place] = Record::new(block, slot as u16);
    }

    /// Returns the block in work that was started first, not counting the one in slot `but`, and
    /// its slot.
    fn oldest(&self, but: Option<u16>) -> Option<(u32, u16)> {
        let works = (0..).zip(&*self.works);
        let begun = works.filter_map(|(slot, work)| Some((work.begun()?, slot)));
        let others = begun.filter(|(_, slot)| Some(*slot) != but);
        others
            .min_by_key(|((_, order), _)| *order)
            .map(|((block, _), slot)| (block, slot))
    }

    /// Ends work on the block recorded at `place`, if it is in work, and counts its lost packets.
    fn give_way(&mut self, place: usize, stats: &mut DecoderStats) {
        let record = &mut self.records[place];
        let State::InWork(slot) = record.state else {
            return;
        };
        let missing = record.missing() as u64;
        stats.evicted += 1;
        stats.lost += missing;
        stats.lost_blocks += u64::from(missing > 0);
        self.end(slot);
    }
}
