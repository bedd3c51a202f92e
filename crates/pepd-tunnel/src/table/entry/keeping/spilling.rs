//! To the disk and back.

use std::rc::Rc;

use pep_core::{chunks::CHUNK, custody::Place};

use super::{Chunk, FlowBuffers, READS, UNDER_WAY};
use crate::custody::{Label, RECORD, ReadError, Record, Spot, WriteError};

impl FlowBuffers {
    /// There is no room for what the leg has: the youngest chunks are to leave memory, where more is taken than may soon be sent.
    pub(in crate::table) fn make_room(&mut self) {
        // What others give back is not told.
        self.keeping.refused = true;
        if self.keeping.holds_more_than_needed() {
            self.spill(UNDER_WAY, 0);
        }
    }

    /// The youngest full chunks leave memory, none that begins before `from`.
    pub(super) fn spill(&mut self, most: usize, from: u64) {
        let custody = Rc::clone(&self.keeping.keeper.custody);
        let mut spill = custody.spill.borrow_mut();
        let Some(spill) = spill.as_mut().filter(|_| custody.pause.get() == 0) else {
            return;
        };
        if self.binding.token == 0 {
            // A successor could not tell whose they are.
            return;
        }
        let most = most.min(UNDER_WAY.saturating_sub(self.keeping.under_way()));
        let fulls = self.outgoing.full_chunks(self.keeping.announced.max(from));
        let fulls = fulls.filter(|start| !self.keeping.spilled.contains_key(start));
        let starts: Vec<_> = fulls.take(most).collect();
        for start in starts {
            let Some(mut record) = spill.record() else {
                return;
            };
            let account = self.keeping.account;
            let mut ledger = custody.ledger.borrow_mut();
            if !ledger.try_take(account, Place::Disk, RECORD) {
                drop(ledger);
                spill.reuse(record);
                return;
            }
            self.copy_chunk(start, record.bytes_mut());
            if !self.is_unchanged(start, record.bytes_mut()) {
                ledger.give_back(account, Place::Disk, RECORD);
                return;
            }
            self.keeping.spilled.insert(start, Chunk::Leaving);
            spill.write(self.keeping.keeper.key, self.label(start), record);
        }
    }

    /// What says on the disk where a chunk belongs: to any process that goes on with the flow.
    fn label(&self, position: u64) -> Label {
        Label {
            flow: self.binding.token,
            direction: self.outward,
            position,
            len: CHUNK as u32,
        }
    }

    /// A record was written, or not.
    pub(crate) fn on_written(&mut self, start: u64, result: Result<Spot, WriteError>) {
        match result {
            Ok(spot) if start >= self.keeping.announced => {
                self.keeping.spilled.insert(start, Chunk::Away(spot, 0));
                self.outgoing.release(start..start + CHUNK);
                self.publish_chunks(self.outward);
                let counters = &self.keeping.keeper.custody.counters;
                counters.update(|stats| stats.custody_spilled_bytes += CHUNK);
            }
            Ok(spot) => {
                // It is its turn already.
                self.keeping.spilled.remove(&start);
                self.keeping.give_disk_back();
                self.keeping.keeper.custody.forget(spot);
            }
            Err(err) => {
                self.keeping.spilled.remove(&start);
                self.keeping.give_disk_back();
                self.keeping.keeper.custody.on_disk_failed(&err, "write");
            }
        }
        self.wake();
    }

    /// A record was read, or not.
    pub(crate) fn on_read(&mut self, start: u64, spot: Spot, result: Result<Record, ReadError>) {
        let Some(Chunk::Coming(failures)) = self.keeping.spilled.get(&start).copied() else {
            return;
        };
        let custody = Rc::clone(&self.keeping.keeper.custody);
        match result {
            Ok(mut record) => {
                let space = self.outgoing.restore(start);
                self.memory
                    .slot
                    .write(self.outward, &space, record.bytes_mut());
                // Only then are they here for a successor, too, and only then is what is on the disk not needed any more.
                self.publish_chunks(self.outward);
                self.keeping.spilled.remove(&start);
                self.keeping.give_disk_back();
                custody.forget(spot);
                custody.reuse(record);
            }
            Err(err) => {
                custody.on_disk_failed(&err, "read");
                self.outgoing.break_promise();
                self.keeping
                    .spilled
                    .insert(start, Chunk::Away(spot, failures + 1));
                if failures + 1 >= READS {
                    self.lose(start, &err);
                }
            }
        }
        self.settle(self.outward);
        self.wake();
    }

    /// Has chunks read of bytes below `due`. Returns whether some are not, for want of memory.
    pub(super) fn fetch(&mut self, due: u64) -> bool {
        let custody = Rc::clone(&self.keeping.keeper.custody);
        let mut spill = custody.spill.borrow_mut();
        let Some(spill) = spill.as_mut().filter(|_| custody.pause.get() == 0) else {
            return false;
        };
        let chunks = self.keeping.spilled.range(..due);
        let away = chunks.filter_map(|(start, chunk)| match chunk {
            Chunk::Away(spot, failures) => Some((*start, *spot, *failures)),
            _ => None,
        });
        let away: Vec<_> = away.take(UNDER_WAY).collect();
        for (start, spot, failures) in away {
            if self.keeping.under_way() >= UNDER_WAY {
                return false;
            }
            if !self.promise() {
                return true;
            }
            let label = self.label(start);
            if !spill.read(self.keeping.keeper.key, label, spot) {
                self.outgoing.break_promise();
                return false;
            }
            let coming = Chunk::Coming(failures);
            self.keeping.spilled.insert(start, coming);
        }
        false
    }

    /// Sets memory aside for a chunk that comes back, if there is some. There always is where nothing else is under way: then
    /// nothing would ever be freed.
    fn promise(&mut self) -> bool {
        let nothing_else =
            self.keeping.announced == self.outgoing.head() && !self.keeping.fetches();
        let needed = self.outgoing.reserved_with_another();
        let more = needed.saturating_sub(self.charged[self.outward as usize]);
        let fits = more == 0 || self.try_grow(more);
        let promised = (fits || nothing_else) && self.outgoing.promise();
        if promised && !fits {
            self.keeping.over += more;
        }
        self.settle(self.outward);
        promised
    }
}
