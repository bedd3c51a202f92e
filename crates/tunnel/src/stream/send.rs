//! Sending direction of a stream.

use std::ops::Range;

use crate::{
    ranges::RangeSet,
    wire::{Data, StreamId, varint},
};

/// State of the sending direction of a stream.
#[derive(Clone, Debug)]
pub struct SendState {
    /// Bytes below this can be read from the store.
    written: u64,
    /// The stream ends after the written bytes.
    finished: bool,
    /// Bytes below this have been sent.
    sent: u64,
    fin_sent: bool,
    /// Bytes below this may be sent.
    credit: u64,
    /// Credit announced by the peer.
    announced: u64,
    /// Credit beyond which the peer must go before more bytes may be sent, if it asked for that.
    held: Option<u64>,
    /// Bytes below this are acknowledged.
    acked: u64,
    /// Bytes acknowledged beyond the first missing one.
    acked_beyond: RangeSet,
    fin_acked: bool,
}

impl SendState {
    /// Creates a stream with `credit` bytes of initial credit.
    pub fn new(credit: u64) -> Self {
        Self {
            written: 0,
            finished: false,
            sent: 0,
            fin_sent: false,
            credit,
            announced: 0,
            held: None,
            acked: 0,
            acked_beyond: RangeSet::default(),
            fin_acked: false,
        }
    }

    /// Makes bytes below `until` available. Ignored if they were before, or after the end.
    pub fn written(&mut self, until: u64) {
        if !self.finished {
            self.written = self.written.max(until.min(varint::MAX));
        }
    }

    /// Ends the stream after the written bytes.
    pub fn finish(&mut self) {
        self.finished = true;
    }

    /// Takes credit from the peer for bytes below `until`. Credit never shrinks.
    pub fn on_credit(&mut self, until: u64) {
        self.announced = self.announced.max(until);
        self.credit = self.credit.max(until);
        self.held = self.held.filter(|held| self.credit <= *held);
    }

    /// Stops sending until there is credit above `until`. Without effect if there is: such a
    /// request has been overtaken by the credit that ended it.
    pub fn on_hold(&mut self, until: u64) {
        if self.credit <= until {
            self.held = Some(until);
        }
    }

    /// Sets the initial credit to `until`, or to the credit announced since. Call before any bytes
    /// are sent.
    pub fn limit(&mut self, until: u64) {
        self.credit = until.max(self.announced);
    }

    /// Returns the position below which all bytes are acknowledged.
    pub fn acked(&self) -> u64 {
        self.acked
    }

    /// Returns unsent data that may be sent, `session` bytes at most. A bare end of stream has no
    /// bytes.
    pub fn unsent(&self, stream: StreamId, session: u64) -> Option<Data> {
        let credit = if self.held.is_some() {
            self.sent
        } else {
            self.credit
        };
        let limit = credit.min(self.sent.saturating_add(session));
        let len = self.written.min(limit).saturating_sub(self.sent);
        let fin = self.finished && self.sent + len == self.written;
        let something = len > 0 || fin && !self.fin_sent;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        something.then(|| Data::new(stream, self.sent, len, fin))
    }

    /// Records that the first `len` bytes of [unsent](Self::unsent) data are sent, and the end if
    /// `fin`.
    pub fn on_sent(&mut self, len: usize, fin: bool) {
        self.sent += len as u64;
        self.fin_sent |= fin;
    }

    /// Returns true if all written bytes are sent.
    pub fn is_drained(&self) -> bool {
        self.sent == self.written
    }

    /// Records that the peer has these bytes. Returns the first position it lacks, if that has
    /// changed.
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

    /// Returns bytes that the peer has beyond its first missing one, as runs in rising order.
    pub fn acked_beyond(&self) -> impl Iterator<Item = Range<u64>> {
        self.acked_beyond.from(0)
    }

    /// Returns the number of bytes sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Returns true if the peer has all bytes and the end of the stream.
    pub fn is_over(&self) -> bool {
        self.finished && self.fin_acked && self.acked == self.written
    }
}
