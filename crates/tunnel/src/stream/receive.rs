//! The receiving direction of a stream.

use std::ops::Range;

use super::{StreamError, credit::Allowance};
use crate::{ranges::RangeSet, wire::Data};

/// The most pieces of a stream that may have arrived without what is before them. A window of 300 MB
/// of packets of which every tenth is lost makes a third of that.
const PIECES_MAX: usize = 1 << 16;

/// What has been received and allowed of a stream.
#[derive(Clone, Debug)]
pub struct ReceiveHalf {
    /// Bytes below this have been received.
    readable: u64,
    /// And these.
    beyond: RangeSet,
    /// After the highest byte that the peer has sent, as far as we know.
    highest: u64,
    /// Where the stream ends.
    end: Option<u64>,
    allowance: Allowance,
}

/// What data has brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Bytes that were not there before, or some of them: they are to be placed, but for the first `known`.
    pub is_new: bool,
    /// How many of the bytes are below what was readable before; their owner may have given up their place.
    pub known: usize,
    /// The first position that is missing, if that has changed.
    pub readable: Option<u64>,
    /// Everything is there, for the first time.
    pub finished: bool,
    /// The peer should be told now what it may send of the stream ([`ReceiveHalf::allow`]).
    pub tell: bool,
}

impl ReceiveHalf {
    /// One to which `allowed` bytes may be sent to begin with.
    #[must_use]
    pub fn new(allowed: u64) -> Self {
        Self {
            readable: 0,
            beyond: RangeSet::default(),
            highest: 0,
            end: None,
            allowance: Allowance::new(allowed),
        }
    }

    /// By how much data would raise the highest position.
    ///
    /// # Errors
    /// If it is beyond what was allowed, or beyond the end, or ends elsewhere (RFC 9000 §4.5); or more pieces have
    /// come than fit together. Nothing changes.
    pub fn check(&self, data: Data) -> Result<u64, StreamError> {
        let (stream, end, allowed) = (data.stream, data.end(), self.allowed());
        if end > allowed {
            return Err(StreamError::Credit {
                stream,
                end,
                allowed,
            });
        }
        let known = self.end.unwrap_or(end.max(self.highest));
        if end > known || data.fin && end != known {
            let (one, other) = (known, end);
            return Err(StreamError::FinalSize { stream, one, other });
        }
        if self.beyond.runs_len() >= PIECES_MAX {
            return Err(StreamError::Pieces(stream));
        }
        Ok(end.saturating_sub(self.highest))
    }

    /// Takes data that has been [checked](Self::check).
    pub fn on_data(&mut self, data: Data) -> News {
        let (was_finished, before) = (self.is_finished(), self.readable);
        self.note(data);
        let known = self.readable.saturating_sub(data.from);
        let known = usize::try_from(known).map_or(data.len, |known| known.min(data.len));
        let is_new = self.insert(data.from.max(self.readable)..data.end());
        News {
            is_new,
            known,
            readable: (self.readable > before).then_some(self.readable),
            finished: !was_finished && self.is_finished(),
            tell: self.allow(0),
        }
    }

    /// Adds positions from what is readable on; whether one of them was not there.
    fn insert(&mut self, numbers: Range<u64>) -> bool {
        if self.beyond.runs_len() == 0 && numbers.start == self.readable {
            self.readable = self.readable.max(numbers.end);
            return !numbers.is_empty();
        }
        let is_new = self.beyond.insert_range(numbers);
        if let Some(end) = self.beyond.take_run_up_to(self.readable) {
            self.readable = end;
        }
        is_new
    }

    /// Takes note of how far data goes that nobody wants any more.
    pub(super) fn note(&mut self, data: Data) {
        self.highest = self.highest.max(data.end());
        if data.fin {
            self.end = Some(data.end());
        }
    }

    /// Nobody wants the stream any more: what is beyond a missing byte is forgotten.
    pub(super) fn discard(&mut self) {
        self.beyond = RangeSet::default();
    }

    /// Bytes below `until` may come. Whether the peer should be told, which then counts as done: when a quarter of
    /// what it may send at a time has been added, or it has used up all it knows of.
    pub fn allow(&mut self, until: u64) -> bool {
        let tell = self.allowance.raise(until, self.readable, self.highest);
        tell && self.end.is_none()
    }

    /// Bytes below `until` may come to begin with. To be told before any have, and before more is [allowed](Self::allow).
    pub fn limit(&mut self, until: u64) {
        self.allowance = Allowance::new(until);
    }

    /// Bytes below this may come.
    #[must_use]
    pub fn allowed(&self) -> u64 {
        self.allowance.allowed()
    }

    /// Whether it is known where the stream ends.
    #[must_use]
    pub fn has_end(&self) -> bool {
        self.end.is_some()
    }

    /// Whether everything is there.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.end == Some(self.readable)
    }
}
