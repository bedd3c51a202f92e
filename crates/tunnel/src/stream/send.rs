//! The sending direction of a stream.

use std::ops::Range;

use crate::{
    ranges::RangeSet,
    wire::{Data, StreamId, varint},
};

/// What has been written, sent and acknowledged of a stream.
#[derive(Clone, Debug)]
pub struct SendHalf {
    /// Bytes below this can be read.
    written: u64,
    /// Nothing follows what is written.
    finished: bool,
    /// Bytes below this have been sent.
    sent: u64,
    fin_sent: bool,
    /// Bytes below this may be sent.
    credit: u64,
    /// What the peer has said of that.
    told: u64,
    /// Bytes below this are acknowledged.
    acked: u64,
    /// And these.
    acked_beyond: RangeSet,
    fin_acked: bool,
}

impl SendHalf {
    /// One that may send `credit` bytes to begin with.
    pub fn new(credit: u64) -> Self {
        Self {
            written: 0,
            finished: false,
            sent: 0,
            fin_sent: false,
            credit,
            told: 0,
            acked: 0,
            acked_beyond: RangeSet::default(),
            fin_acked: false,
        }
    }

    /// Bytes below `until` are there. Of no effect if they were, or after the end.
    pub fn written(&mut self, until: u64) {
        if !self.finished {
            self.written = self.written.max(until.min(varint::MAX));
        }
    }

    /// The stream ends after what is written.
    pub fn finish(&mut self) {
        self.finished = true;
    }

    /// The peer takes bytes below `until`. What it has allowed once it cannot take back.
    pub fn on_credit(&mut self, until: u64) {
        self.told = self.told.max(until);
        self.credit = self.credit.max(until);
    }

    /// The peer takes bytes below `until` to begin with, or what it has said since. To be told before any are sent.
    pub fn limit(&mut self, until: u64) {
        self.credit = until.max(self.told);
    }

    /// Bytes below this are acknowledged.
    pub fn acked(&self) -> u64 {
        self.acked
    }

    /// What has not been sent and may be, `session` bytes at most; the end by itself has no bytes.
    pub fn unsent(&self, stream: StreamId, session: u64) -> Option<Data> {
        let limit = self.credit.min(self.sent.saturating_add(session));
        let len = self.written.min(limit).saturating_sub(self.sent);
        let fin = self.finished && self.sent + len == self.written;
        let something = len > 0 || fin && !self.fin_sent;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        something.then(|| Data::of(stream, self.sent, len, fin))
    }

    /// The first `len` bytes of what was [unsent](Self::unsent) are on their way, and the end if `fin`.
    pub fn on_sent(&mut self, len: usize, fin: bool) {
        self.sent += len as u64;
        self.fin_sent |= fin;
    }

    /// The peer has these bytes. Returns the first position that it lacks if that has changed.
    pub fn on_acked(&mut self, data: Data) -> Option<u64> {
        self.fin_acked |= data.fin;
        let before = self.acked;
        let numbers = data.from.max(self.acked)..data.end();
        if numbers.start == before && self.acked_beyond.runs_len() == 0 {
            self.acked = before.max(numbers.end);
        } else {
            self.acked_beyond.insert_range(numbers);
            if let Some(end) = self.acked_beyond.take_run_up_to(before) {
                self.acked = end;
            }
        }
        (self.acked > before).then_some(self.acked)
    }

    /// Bytes that the peer has beyond the first one that it lacks, as runs in rising order.
    pub fn acked_beyond(&self) -> impl Iterator<Item = Range<u64>> {
        self.acked_beyond.from(0)
    }

    /// Bytes that have been sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Whether the peer has everything, and knows that it is everything.
    pub fn is_over(&self) -> bool {
        self.finished && self.fin_acked && self.acked == self.written
    }
}
