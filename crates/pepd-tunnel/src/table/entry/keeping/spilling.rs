//! Transfer of chunks to the disk and back.

use std::rc::Rc;

use pep_core::{chunks::CHUNK, custody::Place};

use super::{Chunk, FlowBuffers, READS, UNDER_WAY};
use crate::{
    custody::{Label, RECORD, ReadError, Record, Spot, WriteError},
    table::kept::Request,
};

impl FlowBuffers {
    /// Makes room for the leg's bytes: moves the youngest chunks out of memory if the policy
    /// allows.
    pub(in crate::table) fn make_room(&mut self) {
        // No event announces memory that other flows give back.
        self.keeping.refused = true;
        if self.keeping.holds_more_than_needed() {
            self.spill(UNDER_WAY, 0);
        }
    }

    /// Moves the youngest full chunks to the disk, none that begins before `from`.
    pub(super) fn spill(&mut self, most: usize, from: u64) {
        let custody = Rc::clone(&self.keeping.keeper.custody);
        let mut spill = custody.spill.borrow_mut();
        let Some(spill) = spill.as_mut().filter(|_| custody.may(Request::Write)) else {
            return;
        };
        if self.binding.token == 0 {
            // A successor could not assign them to the flow.
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
            self.keeping.put(start, Chunk::Leaving);
            spill.write(self.keeping.keeper.key, self.label(start), record);
        }
    }

    /// Returns the label of a chunk on the disk, by which any process can assign it to the flow.
    fn label(&self, position: u64) -> Label {
        Label {
            flow: self.binding.token,
            direction: self.outward,
            position,
            len: CHUNK as u32,
        }
    }

    /// Handles the result of a write.
    pub(crate) fn on_written(&mut self, start: u64, result: Result<Spot, WriteError>) {
        match result {
            Ok(spot) if start >= self.keeping.announced => {
                self.keeping.put(start, Chunk::OnDisk(spot, 0));
                self.outgoing.release(start..start + CHUNK);
                self.publish_chunks(self.outward);
                let counters = &self.keeping.keeper.custody.counters;
                counters.update(|stats| stats.custody_spilled_bytes += CHUNK);
            }
            Ok(spot) => {
                // The chunk is needed already.
                self.keeping.take_out(start);
                self.keeping.give_disk_back();
                self.keeping.keeper.custody.forget(spot);
            }
            Err(err) => {
                self.keeping.take_out(start);
                self.keeping.give_disk_back();
                self.keeping
                    .keeper
                    .custody
                    .on_disk_failed(&err, Request::Write);
            }
        }
        self.wake();
    }

    /// Handles the result of a read.
    pub(crate) fn on_read(&mut self, start: u64, spot: Spot, result: Result<Record, ReadError>) {
        let Some(Chunk::Returning(failures)) = self.keeping.spilled.get(&start).copied() else {
            return;
        };
        let custody = Rc::clone(&self.keeping.keeper.custody);
        match result {
            Ok(mut record) => {
                let space = self.outgoing.restore(start);
                self.memory
                    .slot
                    .write(self.outward, &space, record.bytes_mut());
                // From here on a successor finds the bytes in memory too, and the copy on disk is
                // not needed any more.
                self.publish_chunks(self.outward);
                self.keeping.take_out(start);
                self.keeping.give_disk_back();
                custody.forget(spot);
                custody.reuse(record);
            }
            Err(err) => {
                custody.on_disk_failed(&err, Request::Read);
                self.outgoing.break_promise();
                let failures = failures + u32::from(!err.is_shortage());
                self.keeping.put(start, Chunk::OnDisk(spot, failures));
                if failures >= READS {
                    self.lose(start, &err);
                }
            }
        }
        self.settle(self.outward);
        self.wake();
    }

    /// Requests chunks below `due` from the disk. Returns whether memory is lacking for some.
    pub(super) fn fetch(&mut self, due: u64) -> bool {
        let custody = Rc::clone(&self.keeping.keeper.custody);
        let mut spill = custody.spill.borrow_mut();
        let Some(spill) = spill.as_mut().filter(|_| custody.may(Request::Read)) else {
            return false;
        };
        let chunks = self.keeping.spilled.range(..due);
        let on_disk = chunks.filter_map(|(start, chunk)| match chunk {
            Chunk::OnDisk(spot, failures) => Some((*start, *spot, *failures)),
            _ => None,
        });
        let on_disk: Vec<_> = on_disk.take(UNDER_WAY).collect();
        for (start, spot, failures) in on_disk {
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
            let returning = Chunk::Returning(failures);
            self.keeping.put(start, returning);
        }
        false
    }

    /// Reserves memory for a returning chunk if there is some. Always succeeds when nothing else is
    /// pending: nothing would ever be freed otherwise.
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
