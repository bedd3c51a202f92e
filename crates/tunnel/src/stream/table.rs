//! All streams of a session.

use std::collections::HashMap;

use super::{News, ReceiveHalf, SendHalf, StreamError, ids::Ids};
use crate::{
    class::Class,
    wire::{Data, StreamId},
};

/// How many streams of the peer may be missing before the newest: what is further ahead is nonsense.
const AHEAD_MAX: u64 = 1 << 16;

/// What becomes of a stream that the peer opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// It is there now.
    New,
    /// It was opened before.
    Known,
    /// There are more than the peer may have; it is over at once.
    TooMany,
}

/// The streams of a session, those of both sides.
#[derive(Debug)]
pub struct Streams {
    streams: HashMap<StreamId, Stream>,
    initiator: bool,
    stream_credit: u64,
    streams_max: u32,
    /// Open ones: ours, the peer's.
    count: [u32; 2],
    next: StreamId,
    opened_by_peer: Ids,
    /// Sums of the highest positions sent and received, and what they may be.
    sent: u64,
    credit: u64,
    received: u64,
    allowed: u64,
    told: u64,
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
            streams: HashMap::new(),
            initiator,
            stream_credit,
            streams_max,
            count: [0; 2],
            next: u64::from(!initiator),
            opened_by_peer: Ids::default(),
            sent: 0,
            credit: session_credit,
            received: 0,
            allowed: session_credit,
            told: session_credit,
        }
    }

    fn is_ours(&self, stream: StreamId) -> bool {
        (stream % 2 == 0) == self.initiator
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
    /// If it is not the peer's to open.
    pub fn open_by_peer(&mut self, stream: StreamId, class: Class) -> Result<Opening, StreamError> {
        if self.is_ours(stream) {
            return Err(StreamError::NotYours(stream));
        }
        if !self.opened_by_peer.insert(stream) {
            return Ok(Opening::Known);
        }
        // The peer may know that a stream is over while we do not yet.
        if self.count[1] >= self.streams_max.saturating_mul(2) {
            return Ok(Opening::TooMany);
        }
        self.insert(stream, class, false);
        Ok(Opening::New)
    }

    /// Whether it may be one that the peer has opened without our having heard of it yet.
    ///
    /// # Errors
    /// If it is one of ours, and we have not opened it; or the peer cannot have come that far.
    pub fn may_be_opened(&self, stream: StreamId) -> Result<bool, StreamError> {
        if self.is_ours(stream) {
            if stream >= self.next {
                return Err(StreamError::NeverOpened(stream));
            }
            return Ok(false);
        }
        if stream / 2 > self.opened_by_peer.end() + AHEAD_MAX {
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

    /// Takes the stream away; whether it was there.
    pub fn remove(&mut self, stream: StreamId) -> bool {
        let was_there = self.streams.remove(&stream).is_some();
        if was_there {
            self.count[usize::from(!self.is_ours(stream))] -= 1;
        }
        was_there
    }

    /// Whether there is something of a stream that may be sent.
    pub fn has_unsent(&self, stream: StreamId) -> bool {
        self.is_unannounced(stream) || self.unsent(stream).is_some()
    }

    /// What has not been sent of a stream and may be.
    pub fn unsent(&self, stream: StreamId) -> Option<Data> {
        let session = self.credit - self.sent;
        self.streams.get(&stream)?.send.unsent(stream, session)
    }

    /// The first `data.len` bytes of what was unsent are on their way.
    pub fn on_sent(&mut self, data: Data) {
        if let Some(stream) = self.streams.get_mut(&data.stream) {
            stream.send.on_sent(data.len, data.fin);
            self.sent += data.len as u64;
        }
    }

    /// The peer has these bytes. Returns the first position that it lacks if that has changed.
    pub fn on_acked(&mut self, data: Data) -> Option<u64> {
        self.streams.get_mut(&data.stream)?.send.on_acked(data)
    }

    /// The peer takes bytes of a stream below `until`.
    pub fn on_credit(&mut self, stream: StreamId, until: u64) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.send.on_credit(until);
        }
    }

    /// The peer takes so many bytes of all streams. Returns those that have waited for it, perhaps.
    pub fn on_session_credit(&mut self, until: u64) -> Vec<StreamId> {
        let waited = self.credit == self.sent && until > self.credit;
        self.credit = self.credit.max(until);
        if waited {
            self.streams.keys().copied().collect()
        } else {
            Vec::new()
        }
    }

    /// Data of a stream has come; what is new, or `None` if the stream is no more.
    ///
    /// # Errors
    /// If the peer may not send that.
    pub fn on_data(&mut self, data: Data) -> Result<Option<News>, StreamError> {
        let Some(stream) = self.streams.get_mut(&data.stream) else {
            return Ok(None);
        };
        let risen = stream.receive.check(data)?;
        let (sum, allowed) = (self.received.saturating_add(risen), self.allowed);
        if sum > allowed {
            return Err(StreamError::SessionCredit { sum, allowed });
        }
        self.received = sum;
        Ok(Some(stream.receive.on_data(data)))
    }

    /// The peer may send bytes of a stream below `until`; whether it should be told.
    pub fn allow(&mut self, stream: StreamId, until: u64) -> bool {
        let stream = self.streams.get_mut(&stream);
        stream.is_some_and(|stream| stream.receive.allow(until))
    }

    /// The peer may send so many bytes of all streams together; whether it should be told.
    pub fn allow_session(&mut self, until: u64) -> bool {
        self.allowed = self.allowed.max(until);
        let window = self.allowed - self.received;
        let tell = self.allowed - self.told > window / 4;
        if tell {
            self.told = self.allowed;
        }
        tell
    }

    /// What the peer may send of a stream.
    pub fn allowed(&self, stream: StreamId) -> Option<u64> {
        let stream = self.streams.get(&stream)?;
        Some(stream.receive.allowed())
    }

    /// What the peer may send of all together.
    pub fn session_allowed(&self) -> u64 {
        self.allowed
    }

    /// Whether both directions have come to their end, and the peer knows of ours.
    pub fn is_over(&self, stream: StreamId) -> bool {
        let stream = self.streams.get(&stream);
        stream.is_some_and(|stream| stream.send.is_over() && stream.receive.is_finished())
    }
}
