//! The receiving direction of a stream.

use super::StreamError;
use crate::{ranges::RangeSet, wire::Data};

/// What has been received and allowed of a stream.
#[derive(Clone, Debug)]
pub struct ReceiveHalf {
    /// Bytes below this have been received.
    readable: u64,
    /// And these.
    beyond: RangeSet,
    /// After the highest byte that has been received.
    highest: u64,
    /// Where the stream ends.
    end: Option<u64>,
    /// Bytes below this may come.
    allowed: u64,
    /// What the peer was last told that it may send.
    told: u64,
}

/// What data has brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Bytes that were not there before, or some of them.
    pub is_new: bool,
    /// The first position that is missing, if that has changed.
    pub readable: Option<u64>,
    /// Everything is there, for the first time.
    pub finished: bool,
    /// By how much the highest position has risen.
    pub risen: u64,
}

impl ReceiveHalf {
    /// One to which `allowed` bytes may be sent to begin with.
    pub fn new(allowed: u64) -> Self {
        Self {
            readable: 0,
            beyond: RangeSet::default(),
            highest: 0,
            end: None,
            allowed,
            told: allowed,
        }
    }

    /// By how much data would raise the highest position.
    ///
    /// # Errors
    /// If it is beyond what was allowed, or beyond the end, or ends elsewhere. Nothing changes.
    pub fn check(&self, data: Data) -> Result<u64, StreamError> {
        let Data { stream, .. } = data;
        let end = data.from + data.len as u64;
        if end > self.allowed {
            let allowed = self.allowed;
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
        Ok(end.saturating_sub(self.highest))
    }

    /// Takes data that has been [checked](Self::check).
    pub fn on_data(&mut self, data: Data) -> News {
        let end = data.from + data.len as u64;
        let was_finished = self.is_finished();
        let before = self.readable;
        let risen = end.saturating_sub(self.highest);
        self.highest = self.highest.max(end);
        if data.fin {
            self.end = Some(end);
        }
        let start = data.from.max(self.readable);
        let is_new = start < end && self.beyond.insert_range(start..end);
        while let Some(end) = self.beyond.take_run_up_to(self.readable) {
            self.readable = self.readable.max(end);
        }
        News {
            is_new,
            readable: (self.readable > before).then_some(self.readable),
            finished: !was_finished && self.is_finished(),
            risen,
        }
    }

    /// Bytes below `until` may come. Whether the peer should be told: when a quarter of what it may send at a
    /// time has been added, or it has little left.
    pub fn allow(&mut self, until: u64) -> bool {
        self.allowed = self.allowed.max(until);
        let window = self.allowed - self.readable;
        let worth = self.allowed - self.told >= window / 4 || self.told < self.highest + window / 2;
        let tell = self.allowed > self.told && worth && self.end.is_none();
        if tell {
            self.told = self.allowed;
        }
        tell
    }

    /// Bytes below this may come.
    pub fn allowed(&self) -> u64 {
        self.allowed
    }

    /// Whether everything is there.
    pub fn is_finished(&self) -> bool {
        self.end == Some(self.readable)
    }
}
