//! Receiving direction of a stream.

use std::ops::Range;

use super::{StreamError, credit::Allowance};
use crate::{ranges::RangeSet, wire::Data};

/// State of the receiving direction of a stream.
#[derive(Clone, Debug)]
pub struct ReceiveState {
    /// Bytes below this have been received.
    readable: u64,
    /// Bytes received beyond the first missing one.
    beyond: RangeSet,
    /// Position after the highest byte known to have been sent by the peer.
    highest: u64,
    /// End of the stream, if known.
    end: Option<u64>,
    allowance: Allowance,
    /// The peer was asked to send no more, at this credit.
    held: Option<u64>,
}

/// Effect of received data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// True if some of the bytes are new; all but the first `known` must be placed.
    pub is_new: bool,
    /// Number of leading bytes below the previous readable position; their owner may have released
    /// the space.
    pub known: usize,
    /// First missing position, if it has changed.
    pub readable: Option<u64>,
    /// True if the stream is complete for the first time.
    pub finished: bool,
    /// True if the peer must be notified of the stream's credit now ([`ReceiveState::allow`]).
    pub tell: bool,
}

impl ReceiveState {
    /// Creates a stream with `allowed` bytes of initial credit.
    #[must_use]
    pub fn new(allowed: u64) -> Self {
        Self {
            readable: 0,
            beyond: RangeSet::default(),
            highest: 0,
            end: None,
            allowance: Allowance::new(allowed),
            held: None,
        }
    }

    /// Returns by how much data would raise the highest position. Changes nothing.
    ///
    /// # Errors
    ///
    /// The data is beyond the credit or beyond the end, or ends elsewhere (RFC 9000 §4.5).
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
        Ok(end.saturating_sub(self.highest))
    }

    /// Returns true if data would be one more separate piece beyond the first missing byte.
    #[must_use]
    pub fn adds_piece(&self, data: Data) -> bool {
        data.len > 0 && data.from > self.readable && !self.beyond.touches(data.from..data.end())
    }

    /// Returns the number of separate pieces beyond the first missing byte, and the bytes from that
    /// one to the highest position.
    #[must_use]
    pub fn beyond(&self) -> (usize, u64) {
        (self.beyond.runs_len(), self.highest - self.readable)
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

    /// Adds positions from the readable one on; returns true if one of them is new.
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

    /// Records the extent of data that is no longer needed.
    pub(super) fn note(&mut self, data: Data) {
        self.highest = self.highest.max(data.end());
        if data.fin {
            self.end = Some(data.end());
        }
    }

    /// Discards the state of a stream that is no longer needed: bytes beyond a missing one are
    /// forgotten.
    pub(super) fn discard(&mut self) {
        self.beyond = RangeSet::default();
    }

    /// Allows bytes below `until`. Returns true if the peer must be notified, which then counts as
    /// done: a quarter of the window has been added, the peer has used up its credit, or the stream
    /// was [held](Self::hold).
    pub fn allow(&mut self, until: u64) -> bool {
        let ends_hold = self.held.is_some_and(|held| until > held);
        if ends_hold {
            self.held = None;
            self.allowance.announce(until);
        }
        let tell = self.allowance.raise(until, self.readable, self.highest);
        (ends_hold || tell) && self.end.is_none()
    }

    /// Holds the stream at its present credit. Returns true if the peer must be asked.
    pub fn hold(&mut self) -> bool {
        let begins = self.held.is_none() && self.end.is_none();
        if begins {
            self.held = Some(self.allowed());
        }
        begins
    }

    /// Returns the credit at which the stream is held, while that is so and matters.
    #[must_use]
    pub fn held_at(&self) -> Option<u64> {
        self.held.filter(|_| self.end.is_none())
    }

    /// Sets the initial credit to `until`. Call before any bytes arrive and before
    /// [`allow`](Self::allow).
    pub fn limit(&mut self, until: u64) {
        self.allowance = Allowance::new(until);
    }

    /// Returns the position below which bytes may arrive.
    #[must_use]
    pub fn allowed(&self) -> u64 {
        self.allowance.allowed()
    }

    /// Returns true if the end of the stream is known.
    #[must_use]
    pub fn has_end(&self) -> bool {
        self.end.is_some()
    }

    /// Returns true if all bytes have arrived.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.end == Some(self.readable)
    }
}
