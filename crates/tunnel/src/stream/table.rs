//! All streams of a session.

use std::{collections::BTreeMap, ops::Range, time::Duration};

use super::{
    News, ReceiveState, SendState, StreamError, credit::SessionCredit, ids::Ids, steady::Steady,
};
use crate::{
    class::Class,
    wire::{Data, StreamId},
};

/// Streams beyond the peer's limit that are refused individually, before the session fails.
const MORE_MAX: u32 = 64;

/// Minimum number of the peer's streams that may be over for the peer before the local end knows:
/// short streams come and go while reports are lost.
const LATE: u32 = 32;

/// Separate runs of bytes, and of segments, that a session keeps in any case, and bytes of credit
/// for each further one. An honest peer has one run for every lost packet, and its credit covers
/// many packets for each of those.
const RUNS_MIN: usize = 4096;
const RUN_CREDIT: u64 = 1024;

/// Result of an opening by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// New stream.
    New,
    /// Stream opened before.
    Known,
    /// Stream limit of the peer exceeded: the stream was reset before anything was sent on it.
    TooMany,
}

/// Streams of a session, opened by either end.
#[derive(Debug)]
pub struct Streams {
    streams: BTreeMap<StreamId, Stream>,
    /// Locally reset streams for which the number of bytes sent by the peer is not yet known.
    pub(super) resetting: BTreeMap<StreamId, ReceiveState>,
    initiator: bool,
    stream_credit: u64,
    streams_max: u32,
    /// Open and resetting streams: local ones, the peer's.
    pub(super) count: [u32; 2],
    next: StreamId,
    opened_by_peer: Ids,
    pub(super) session: SessionCredit,
    /// Separate pieces of all open streams beyond their first missing bytes, and the bytes from
    /// there to the highest positions.
    pub(super) pieces: usize,
    pub(super) beyond: u64,
    /// An announcement of the session's credit waits to be sent.
    session_credit_queued: bool,
}

#[derive(Debug)]
struct Stream {
    class: Class,
    send: SendState,
    receive: ReceiveState,
    /// Runs of bytes sent, and received.
    steady: [Steady; 2],
    /// The peer has not yet received the opening.
    unannounced: bool,
    /// An announcement of credit waits to be sent.
    credit_queued: bool,
    /// A request to hold the stream waits to be sent.
    hold_queued: bool,
}

impl Streams {
    /// Creates an empty table. `session_credit` is the initial credit of all streams together.
    pub fn new(initiator: bool, stream_credit: u64, streams_max: u32, session_credit: u64) -> Self {
        Self {
            streams: BTreeMap::new(),
            resetting: BTreeMap::new(),
            initiator,
            stream_credit,
            streams_max,
            count: [0; 2],
            next: u64::from(!initiator),
            opened_by_peer: Ids::default(),
            session: SessionCredit::new(session_credit),
            pieces: 0,
            beyond: 0,
            session_credit_queued: false,
        }
    }

    fn is_ours(&self, stream: StreamId) -> bool {
        stream.is_multiple_of(2) == self.initiator
    }

    fn insert(&mut self, stream: StreamId, class: Class, unannounced: bool) {
        self.count[usize::from(!self.is_ours(stream))] += 1;
        let stream_credit = self.stream_credit;
        self.streams.insert(
            stream,
            Stream {
                class,
                send: SendState::new(stream_credit),
                receive: ReceiveState::new(stream_credit),
                steady: Default::default(),
                unannounced,
                credit_queued: false,
                hold_queued: false,
            },
        );
    }

    /// Opens a local stream; `None` if the peer's stream limit is reached.
    pub fn open(&mut self, class: Class) -> Option<StreamId> {
        if self.count[0] >= self.streams_max {
            return None;
        }
        let stream = self.next;
        self.next += 2;
        self.insert(stream, class, true);
        Some(stream)
    }

    /// Handles the opening of a stream by the peer.
    ///
    /// # Errors
    /// The number belongs to the local end, or the peer is far beyond its limit.
    pub fn open_by_peer(&mut self, stream: StreamId, class: Class) -> Result<Opening, StreamError> {
        if self.is_ours(stream) {
            return Err(StreamError::NotYours(stream));
        }
        if !self.may_be_opened(stream)? {
            return Ok(Opening::Known);
        }
        if self.count[1] >= self.peers_max() {
            return Err(StreamError::TooMany(stream));
        }
        self.opened_by_peer.insert(stream);
        self.insert(stream, class, false);
        // The peer may know about closed streams before the local end does.
        let late = self.streams_max.max(LATE);
        if self.count[1] > self.streams_max.saturating_add(late) {
            self.reset(stream);
            return Ok(Opening::TooMany);
        }
        Ok(Opening::New)
    }

    /// Returns the maximum number of streams of the peer.
    pub(super) fn peers_max(&self) -> u32 {
        self.streams_max.saturating_mul(4).saturating_add(MORE_MAX)
    }

    /// Returns true if the peer may have opened the stream though its opening has not arrived yet.
    ///
    /// # Errors
    ///
    /// The stream is a local one that was never opened, or is too far ahead: each missing stream
    /// counts as open.
    pub fn may_be_opened(&self, stream: StreamId) -> Result<bool, StreamError> {
        if self.is_ours(stream) {
            if stream >= self.next {
                return Err(StreamError::NeverOpened(stream));
            }
            return Ok(false);
        }
        if self.opened_by_peer.missing(stream) > self.peers_max().into() {
            return Err(StreamError::NeverOpened(stream));
        }
        Ok(!self.opened_by_peer.contains(stream))
    }

    /// Returns true if the stream exists.
    pub fn contains(&self, stream: StreamId) -> bool {
        self.streams.contains_key(&stream)
    }

    /// Returns the number of streams.
    pub fn len(&self) -> usize {
        self.streams.len()
    }

    /// Returns true if there are no streams.
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// Returns the class of a stream.
    pub fn class(&self, stream: StreamId) -> Option<Class> {
        self.streams.get(&stream).map(|stream| stream.class)
    }

    /// Changes the class of a stream.
    pub fn set_class(&mut self, stream: StreamId, class: Class) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.class = class;
        }
    }

    /// Returns true if the opening of a local stream has not been sent yet.
    pub fn is_unannounced(&self, stream: StreamId) -> bool {
        let stream = self.streams.get(&stream);
        stream.is_some_and(|stream| stream.unannounced)
    }

    /// Records that the opening has been sent.
    pub fn announced(&mut self, stream: StreamId) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.unannounced = false;
        }
    }

    /// Makes bytes below `until` available.
    pub fn written(&mut self, stream: StreamId, until: u64) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.send.written(until);
        }
    }

    /// Ends the stream after the written bytes.
    pub fn finish(&mut self, stream: StreamId) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.send.finish();
        }
    }

    /// Removes a stream that [is over](Self::is_over); returns true if it existed.
    pub fn remove(&mut self, stream: StreamId) -> bool {
        let was_there = self.streams.remove(&stream).is_some();
        if was_there {
            self.forget(stream);
        }
        was_there
    }

    /// Decrements the count of open streams.
    fn forget(&mut self, stream: StreamId) {
        self.count[usize::from(!self.is_ours(stream))] -= 1;
    }

    /// Resets a stream in both directions. Returns the number of bytes sent on it, for the reset to
    /// the peer, if the stream existed. If it is still [unannounced](Self::is_unannounced), the
    /// opening must be sent even so.
    pub fn reset(&mut self, stream: StreamId) -> Option<u64> {
        let mut gone = self.streams.remove(&stream)?;
        self.uncount(gone.receive.beyond());
        if gone.receive.has_end() {
            self.forget(stream);
        } else {
            gone.receive.discard();
            self.resetting.insert(stream, gone.receive);
        }
        Some(gone.send.sent())
    }

    /// Handles a reset by the peer, which has sent `sent` bytes. If the stream existed, removes it
    /// and returns the number of bytes sent on it, for the answering reset.
    ///
    /// # Errors
    ///
    /// The peer may not have sent as much, or has sent more.
    pub fn on_reset(&mut self, stream: StreamId, sent: u64) -> Result<Option<u64>, StreamError> {
        self.on_data(Data::new(stream, sent, 0, true))?;
        Ok(self.reset(stream))
    }

    /// Returns true if a stream has something that may be sent.
    pub fn has_unsent(&self, stream: StreamId) -> bool {
        self.is_unannounced(stream) || self.unsent(stream).is_some()
    }

    /// Returns unsent data of a stream that may be sent.
    pub fn unsent(&self, stream: StreamId) -> Option<Data> {
        let session = self.session.left();
        self.streams.get(&stream)?.send.unsent(stream, session)
    }

    /// Returns the number of bytes sent on a stream, if it exists.
    pub fn sent(&self, stream: StreamId) -> Option<u64> {
        self.streams.get(&stream).map(|stream| stream.send.sent())
    }

    /// Records that the first `data.len` unsent bytes are sent.
    pub fn on_sent(&mut self, data: Data) {
        if let Some(stream) = self.streams.get_mut(&data.stream) {
            self.session.on_sent(data.len as u64);
            stream.send.on_sent(data.len, data.fin);
        }
    }

    /// Returns true if a stream of class `normal` is steady: it does not fill the link. Call after
    /// each [`on_sent`](Self::on_sent).
    pub fn sends_steadily(&mut self, stream: StreamId, now: Duration) -> bool {
        let stream = self.streams.get_mut(&stream);
        stream.is_some_and(|stream| {
            let is_steady = stream.steady[0].on_piece(now, stream.send.is_drained());
            is_steady && stream.class == Class::Normal
        })
    }

    /// Returns true if a stream of class `normal` is steady, after new data that arrived at `now`.
    /// `is_whole` tells that the peer had no more bytes that it could send. It may have had more
    /// than the credit.
    pub fn receives_steadily(&mut self, data: Data, now: Duration, is_whole: bool) -> bool {
        let stream = self.streams.get_mut(&data.stream);
        stream.is_some_and(|stream| {
            let is_whole = is_whole && data.end() < stream.receive.allowed();
            stream.steady[1].on_piece(now, is_whole) && stream.class == Class::Normal
        })
    }

    /// Records that the peer has these bytes. Returns the first position it lacks, if that has
    /// changed.
    pub fn on_acked(&mut self, data: Data) -> Option<u64> {
        self.streams.get_mut(&data.stream)?.send.on_acked(data)
    }

    /// Returns bytes that the peer has beyond its first missing one, as runs in rising order.
    pub fn acked_beyond(&self, stream: StreamId) -> impl Iterator<Item = Range<u64>> {
        let stream = self.streams.get(&stream).into_iter();
        stream.flat_map(|stream| stream.send.acked_beyond())
    }

    /// Returns the position below which all bytes of a stream are acknowledged.
    pub fn acked(&self, stream: StreamId) -> Option<u64> {
        Some(self.streams.get(&stream)?.send.acked())
    }

    /// Sets the initial send credit of a stream, instead of the default.
    pub fn limit_send(&mut self, stream: StreamId, until: u64) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.send.limit(until);
        }
    }

    /// Sets the initial receive credit of a stream, instead of the default. The peer must know it.
    pub fn limit_receive(&mut self, stream: StreamId, until: u64) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.receive.limit(until);
        }
    }

    /// Takes credit from the peer for bytes of a stream below `until`.
    pub fn on_credit(&mut self, stream: StreamId, until: u64) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.send.on_credit(until);
        }
    }

    /// Stops sending of a stream, as the peer asks, until there is credit above `until`.
    pub fn on_hold(&mut self, stream: StreamId, until: u64) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.send.on_hold(until);
        }
    }

    /// Holds a stream at its present credit, unless it is held already, or needs no more. Returns
    /// whether a request to the peer must be queued: none waits.
    pub fn hold(&mut self, stream: StreamId) -> Option<bool> {
        let stream = self.streams.get_mut(&stream)?;
        let begins = stream.receive.hold();
        begins.then(|| !std::mem::replace(&mut stream.hold_queued, true))
    }

    /// Returns the credit at which a stream is held.
    pub fn held_at(&self, stream: StreamId) -> Option<u64> {
        self.streams.get(&stream)?.receive.held_at()
    }

    /// Records that the request to hold the stream was sent.
    pub fn hold_sent(&mut self, stream: StreamId) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.hold_queued = false;
        }
    }

    /// Takes session credit from the peer.
    pub fn on_session_credit(&mut self, until: u64) {
        self.session.on_credit(until);
    }

    /// Returns the bytes of all streams together that were sent, and those that may be.
    pub fn session_sent(&self) -> (u64, u64) {
        (self.session.sent, self.session.credit)
    }

    /// Returns the class of a stream that could send if there were credit of the session.
    pub fn blocked_class(&self, id: StreamId) -> Option<Class> {
        if self.session.left() > 0 {
            return None;
        }
        let stream = self.streams.get(&id)?;
        stream.send.unsent(id, u64::MAX).map(|_| stream.class)
    }

    /// Records that an announcement of the stream's credit waits. Returns true if the stream exists
    /// and none waited.
    pub fn queue_credit(&mut self, stream: StreamId) -> bool {
        let stream = self.streams.get_mut(&stream);
        stream.is_some_and(|stream| !std::mem::replace(&mut stream.credit_queued, true))
    }

    /// Records that the announcement of the stream's credit was sent.
    pub fn credit_sent(&mut self, stream: StreamId) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.credit_queued = false;
        }
    }

    /// Records that an announcement of the session's credit waits. Returns true if none waited.
    pub fn queue_session_credit(&mut self) -> bool {
        !std::mem::replace(&mut self.session_credit_queued, true)
    }

    /// Records that the announcement of the session's credit was sent.
    pub fn session_credit_sent(&mut self) {
        self.session_credit_queued = false;
    }

    /// Handles data of a stream. Returns its effect, or `None` if the stream is no longer needed.
    ///
    /// # Errors
    ///
    /// The peer may not send this data.
    pub fn on_data(&mut self, data: Data) -> Result<Option<News>, StreamError> {
        if let Some(stream) = self.streams.get_mut(&data.stream) {
            let risen = stream.receive.check(data)?;
            self.session.on_received(risen)?;
            let before = stream.receive.beyond();
            let news = stream.receive.on_data(data);
            let (pieces, bytes) = stream.receive.beyond();
            self.pieces += pieces;
            self.beyond += bytes;
            self.uncount(before);
            return Ok(Some(news));
        }
        if let Some(direction) = self.resetting.get_mut(&data.stream) {
            self.session.on_received(direction.check(data)?)?;
            direction.note(data);
            if direction.has_end() {
                self.resetting.remove(&data.stream);
                self.forget(data.stream);
            }
        }
        Ok(None)
    }

    /// Subtracts pieces, and bytes beyond missing ones.
    fn uncount(&mut self, (pieces, bytes): (usize, u64)) {
        self.pieces -= pieces;
        self.beyond -= bytes;
    }

    /// Returns the maximum number of separate pieces of all streams, and of separate runs of
    /// segments: in proportion to the credit of bytes that are not yet readable.
    pub fn runs_max(&self) -> usize {
        let unused = self.session.allowed() - self.session.received;
        let credit = unused.saturating_add(self.beyond);
        RUNS_MIN.saturating_add(usize::try_from(credit / RUN_CREDIT).unwrap_or(usize::MAX))
    }

    /// Returns the number of separate pieces of all streams.
    #[cfg(test)]
    pub fn pieces(&self) -> usize {
        self.pieces
    }

    /// Returns true if the streams have as many separate pieces as they may.
    pub fn is_scattered(&self) -> bool {
        self.pieces >= self.runs_max()
    }

    /// Returns true if data would be one separate piece more.
    pub fn adds_piece(&self, data: Data) -> bool {
        let stream = self.streams.get(&data.stream);
        stream.is_some_and(|stream| stream.receive.adds_piece(data))
    }

    /// Allows bytes of a stream below `until`; returns true if the peer must be notified.
    pub fn allow(&mut self, stream: StreamId, until: u64) -> bool {
        let stream = self.streams.get_mut(&stream);
        stream.is_some_and(|stream| stream.receive.allow(until))
    }

    /// Allows `until` bytes of all streams together; returns true if the peer must be notified.
    /// Call with 0, too, when data has arrived: the peer may have used up its credit.
    pub fn allow_session(&mut self, until: u64) -> bool {
        self.session.allow(until)
    }

    /// Returns the position below which the peer may send bytes of a stream.
    pub fn allowed(&self, stream: StreamId) -> Option<u64> {
        let stream = self.streams.get(&stream)?;
        Some(stream.receive.allowed())
    }

    /// Returns the bytes of all streams that count against the session's credit: up to the highest
    /// positions, including bytes that were lost on reset streams.
    pub fn session_received(&self) -> u64 {
        self.session.received
    }

    /// Returns the bytes of all streams together that the peer may send.
    pub fn session_allowed(&self) -> u64 {
        self.session.allowed()
    }

    /// Returns true if both directions have ended and the peer knows the end of the local one.
    pub fn is_over(&self, stream: StreamId) -> bool {
        let stream = self.streams.get(&stream);
        stream.is_some_and(|stream| stream.send.is_over() && stream.receive.is_finished())
    }
}
