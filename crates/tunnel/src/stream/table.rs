//! All streams of a session.

use std::{collections::BTreeMap, ops::Range};

use super::{News, ReceiveHalf, SendHalf, StreamError, credit::SessionCredit, ids::Ids};
use crate::{
    class::Class,
    wire::{Data, StreamId},
};

/// Of the peer's streams beyond what it may have open, so many are as yet refused one by one.
const MORE_MAX: u32 = 64;

/// Of the peer's streams, so many at least may be over for it, though we have not heard of that: short ones come and go
/// while reports are lost.
const LATE: u32 = 32;

/// What becomes of a stream that the peer opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// It is there now.
    New,
    /// It was opened before.
    Known,
    /// There are more than the peer may have: it has been reset, and nothing of it was sent.
    TooMany,
}

/// The streams of a session, those of both sides.
#[derive(Debug)]
pub struct Streams {
    streams: BTreeMap<StreamId, Stream>,
    /// Those that we have reset, while it is not known how much the peer has sent of them.
    pub(super) resetting: BTreeMap<StreamId, ReceiveHalf>,
    initiator: bool,
    stream_credit: u64,
    streams_max: u32,
    /// Open and resetting ones: ours, the peer's.
    pub(super) count: [u32; 2],
    next: StreamId,
    opened_by_peer: Ids,
    pub(super) session: SessionCredit,
}

#[derive(Debug)]
struct Stream {
    class: Class,
    send: SendHalf,
    receive: ReceiveHalf,
    /// The peer has not been told of it.
    unannounced: bool,
}

impl Streams {
    /// No streams. `session_credit` bytes may be on their way of all together to begin with.
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
                send: SendHalf::new(stream_credit),
                receive: ReceiveHalf::new(stream_credit),
                unannounced,
            },
        );
    }

    /// Opens a stream of ours; `None` if there are as many as the peer takes.
    pub fn open(&mut self, class: Class) -> Option<StreamId> {
        if self.count[0] >= self.streams_max {
            return None;
        }
        let stream = self.next;
        self.next += 2;
        self.insert(stream, class, true);
        Some(stream)
    }

    /// The peer opens a stream.
    ///
    /// # Errors
    /// If it is not the peer's to open, or there are far more than it may have open.
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
        // The peer may know that some are over while we do not yet.
        let late = self.streams_max.max(LATE);
        if self.count[1] > self.streams_max.saturating_add(late) {
            self.reset(stream);
            return Ok(Opening::TooMany);
        }
        Ok(Opening::New)
    }

    /// How many streams of the peer there are at most.
    pub(super) fn peers_max(&self) -> u32 {
        self.streams_max.saturating_mul(4).saturating_add(MORE_MAX)
    }

    /// Whether it may be one that the peer has opened without our having heard of it yet.
    ///
    /// # Errors
    /// If it is one of ours, and we have not opened it; or the peer cannot have come that far, as each one that is missing
    /// is open.
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

    /// Whether the stream is there.
    pub fn contains(&self, stream: StreamId) -> bool {
        self.streams.contains_key(&stream)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.streams.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// How its bytes are sent.
    pub fn class(&self, stream: StreamId) -> Option<Class> {
        self.streams.get(&stream).map(|stream| stream.class)
    }

    /// From now on of that class.
    pub fn set_class(&mut self, stream: StreamId, class: Class) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.class = class;
        }
    }

    /// Whether the peer is still to be told of a stream of ours.
    pub fn is_unannounced(&self, stream: StreamId) -> bool {
        let stream = self.streams.get(&stream);
        stream.is_some_and(|stream| stream.unannounced)
    }

    /// The peer is told of it.
    pub fn announced(&mut self, stream: StreamId) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.unannounced = false;
        }
    }

    /// Bytes below `until` are there.
    pub fn written(&mut self, stream: StreamId, until: u64) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.send.written(until);
        }
    }

    /// Nothing follows what is written.
    pub fn finish(&mut self, stream: StreamId) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.send.finish();
        }
    }

    /// Takes away a stream that [is over](Self::is_over); whether it was there.
    pub fn remove(&mut self, stream: StreamId) -> bool {
        let was_there = self.streams.remove(&stream).is_some();
        if was_there {
            self.forget(stream);
        }
        was_there
    }

    /// One less.
    fn forget(&mut self, stream: StreamId) {
        self.count[usize::from(!self.is_ours(stream))] -= 1;
    }

    /// Ends a stream in both directions. Returns what the peer is to be told that was sent of it, if the stream
    /// was there; if it is still [unannounced](Self::is_unannounced) then, it must be announced even so.
    pub fn reset(&mut self, stream: StreamId) -> Option<u64> {
        let mut gone = self.streams.remove(&stream)?;
        if gone.receive.has_end() {
            self.forget(stream);
        } else {
            gone.receive.discard();
            self.resetting.insert(stream, gone.receive);
        }
        Some(gone.send.sent())
    }

    /// The peer has reset a stream of which it has sent so many bytes. If the stream was there, it is no more: returns
    /// what the peer is to be told in return that was sent of it.
    ///
    /// # Errors
    /// If the peer may not have sent so much, or has sent more.
    pub fn on_reset(&mut self, stream: StreamId, sent: u64) -> Result<Option<u64>, StreamError> {
        self.on_data(Data::of(stream, sent, 0, true))?;
        Ok(self.reset(stream))
    }

    /// Whether there is something of a stream that may be sent.
    pub fn has_unsent(&self, stream: StreamId) -> bool {
        self.is_unannounced(stream) || self.unsent(stream).is_some()
    }

    /// What has not been sent of a stream and may be.
    pub fn unsent(&self, stream: StreamId) -> Option<Data> {
        let session = self.session.left();
        self.streams.get(&stream)?.send.unsent(stream, session)
    }

    /// How many bytes of the stream have been sent, where there is one.
    pub fn sent(&self, stream: StreamId) -> Option<u64> {
        self.streams.get(&stream).map(|stream| stream.send.sent())
    }

    /// The first `data.len` bytes of what was unsent are on their way.
    pub fn on_sent(&mut self, data: Data) {
        if let Some(stream) = self.streams.get_mut(&data.stream) {
            stream.send.on_sent(data.len, data.fin);
            self.session.on_sent(data.len as u64);
        }
    }

    /// The peer has these bytes. Returns the first position that it lacks if that has changed.
    pub fn on_acked(&mut self, data: Data) -> Option<u64> {
        self.streams.get_mut(&data.stream)?.send.on_acked(data)
    }

    /// Bytes of a stream that the peer has beyond the first one that it lacks, as runs in rising order.
    pub fn acked_beyond(&self, stream: StreamId) -> impl Iterator<Item = Range<u64>> {
        let stream = self.streams.get(&stream).into_iter();
        stream.flat_map(|stream| stream.send.acked_beyond())
    }

    /// Bytes of a stream below this are acknowledged, all of them.
    pub fn acked(&self, stream: StreamId) -> Option<u64> {
        Some(self.streams.get(&stream)?.send.acked())
    }

    /// How far we may send of a stream to begin with, instead of what is agreed for all.
    pub fn limit_send(&mut self, stream: StreamId, until: u64) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.send.limit(until);
        }
    }

    /// How far the peer may send of a stream to begin with, instead of what is agreed for all. It has to know.
    pub fn limit_receive(&mut self, stream: StreamId, until: u64) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.receive.limit(until);
        }
    }

    /// The peer takes bytes of a stream below `until`.
    pub fn on_credit(&mut self, stream: StreamId, until: u64) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.send.on_credit(until);
        }
    }

    /// The peer takes so many bytes of all streams. Returns those that have waited for it, perhaps.
    pub fn on_session_credit(&mut self, until: u64) -> Vec<StreamId> {
        if self.session.on_credit(until) {
            self.streams.keys().copied().collect()
        } else {
            Vec::new()
        }
    }

    /// Data of a stream has come; what is new, or `None` if nobody wants the stream any more.
    ///
    /// # Errors
    /// If the peer may not send that.
    pub fn on_data(&mut self, data: Data) -> Result<Option<News>, StreamError> {
        if let Some(stream) = self.streams.get_mut(&data.stream) {
            let risen = stream.receive.check(data)?;
            self.session.on_received(risen)?;
            return Ok(Some(stream.receive.on_data(data)));
        }
        if let Some(half) = self.resetting.get_mut(&data.stream) {
            self.session.on_received(half.check(data)?)?;
            half.note(data);
            if half.has_end() {
                self.resetting.remove(&data.stream);
                self.forget(data.stream);
            }
        }
        Ok(None)
    }

    /// The peer may send bytes of a stream below `until`; whether it should be told.
    pub fn allow(&mut self, stream: StreamId, until: u64) -> bool {
        let stream = self.streams.get_mut(&stream);
        stream.is_some_and(|stream| stream.receive.allow(until))
    }

    /// The peer may send so many bytes of all streams together; whether it should be told. To be asked with 0, too, when
    /// something has arrived: perhaps the peer has used up what it knows of.
    pub fn allow_session(&mut self, until: u64) -> bool {
        self.session.allow(until)
    }

    /// What the peer may send of a stream.
    pub fn allowed(&self, stream: StreamId) -> Option<u64> {
        let stream = self.streams.get(&stream)?;
        Some(stream.receive.allowed())
    }

    /// What has come of all together, as far as it counts against what the peer may send: to the highest positions, with
    /// what was lost of streams that were reset.
    pub fn session_received(&self) -> u64 {
        self.session.received
    }

    /// What the peer may send of all together.
    pub fn session_allowed(&self) -> u64 {
        self.session.allowed()
    }

    /// Whether both directions have come to their end, and the peer knows of ours.
    pub fn is_over(&self, stream: StreamId) -> bool {
        let stream = self.streams.get(&stream);
        stream.is_some_and(|stream| stream.send.is_over() && stream.receive.is_finished())
    }
}
