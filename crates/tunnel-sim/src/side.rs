//! What the simulator drives.

use std::{fmt::Debug, ops::Range, time::Duration};

use trace::Trace;
use tunnel::{
    class::Class,
    session::{Event, LinkHint, PacketQueue, Session, SessionConfig, TooManyStreams},
    store::Store,
    wire::{ResetCode, StreamId},
};

/// One end of the tunnel: 0 began it, at the link's end A; 1 is the other.
pub type End = usize;

/// Where an end is in the network; it may move.
pub type Address = u16;

/// What an end is made from.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Which one it is.
    pub end: End,
    /// Of the plan: for keys and the like.
    pub seed: u64,
    /// How many there were at this end before it.
    pub incarnation: u64,
    /// Where the other end is, if this one may know.
    pub peer: Option<Address>,
    /// How the session behaves.
    pub session: SessionConfig,
}

/// What a side tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// A session has begun: the streams of one before it are gone.
    Fresh,
    /// The session is over, and its streams are gone.
    Gone,
    /// Of the session.
    Session(Event),
}

/// What an application says to one end of a session; as the methods of [`Session`] by these names.
pub trait Streams {
    /// Begins a stream.
    ///
    /// # Errors
    /// If there may be no more streams now.
    fn open(
        &mut self,
        class: Class,
        site: u32,
        stream_header: &[u8],
    ) -> Result<StreamId, TooManyStreams>;

    /// There are bytes up to there.
    fn written(&mut self, stream: StreamId, until: u64);

    /// There will be no more.
    fn finish(&mut self, stream: StreamId);

    /// The stream ends at once.
    fn reset(&mut self, stream: StreamId, code: ResetCode);

    /// The peer may send up to there.
    fn allow(&mut self, stream: StreamId, until: u64);

    /// The peer may send that much in all.
    fn allow_session(&mut self, until: u64);

    /// The stream is of another class from now on.
    fn set_class(&mut self, stream: StreamId, class: Class);

    /// Somebody knows of the link.
    fn hint(&mut self, now: Duration, link: LinkHint);

    /// A queue of packets beside streams, where there may be one.
    fn open_packets(&mut self, _class: Class, _site: u32) -> Option<PacketQueue> {
        None
    }

    /// It has something to send.
    fn packets_ready(&mut self, _queue: PacketQueue) {}

    /// Bytes that the peer has though it lacks some before them.
    fn acked_beyond(&self, _stream: StreamId) -> Vec<Range<u64>> {
        Vec::new()
    }
}

impl Streams for Session {
    fn open(
        &mut self,
        class: Class,
        site: u32,
        stream_header: &[u8],
    ) -> Result<StreamId, TooManyStreams> {
        self.open(class, site, stream_header)
    }

    fn written(&mut self, stream: StreamId, until: u64) {
        self.written(stream, until);
    }

    fn finish(&mut self, stream: StreamId) {
        self.finish(stream);
    }

    fn reset(&mut self, stream: StreamId, code: ResetCode) {
        self.reset(stream, code);
    }

    fn allow(&mut self, stream: StreamId, until: u64) {
        self.allow(stream, until);
    }

    fn allow_session(&mut self, until: u64) {
        self.allow_session(until);
    }

    fn set_class(&mut self, stream: StreamId, class: Class) {
        self.set_class(stream, class);
    }

    fn hint(&mut self, now: Duration, link: LinkHint) {
        self.hint(now, link);
    }

    fn open_packets(&mut self, class: Class, site: u32) -> Option<PacketQueue> {
        self.open_packets(class, site).ok()
    }

    fn packets_ready(&mut self, queue: PacketQueue) {
        self.set_packets_ready(queue, true);
    }

    fn acked_beyond(&self, stream: StreamId) -> Vec<Range<u64>> {
        self.acked_beyond(stream).collect()
    }
}

/// One side of a tunnel, as far as the simulator can tell: a session, an endpoint with one peer, or
/// something that is to show that the simulator finds what is wrong.
pub trait Side: Sized {
    /// What applications talk to.
    type Streams: Streams;

    /// A side that begins at `now`.
    fn new(setup: &Setup, now: Duration) -> Self;

    /// What applications talk to, if there is a session.
    fn streams(&mut self) -> Option<&mut Self::Streams>;

    /// Takes a datagram, which may have been damaged on the way.
    ///
    /// # Errors
    /// If the peer must have gone mad.
    fn handle_datagram(
        &mut self,
        now: Duration,
        from: Address,
        datagram: &mut [u8],
        store: &mut impl Store,
    ) -> Result<(), String>;

    /// Writes the next datagram to the end of `out`, if one is due, and says where it goes; nothing is where
    /// the peer has always been.
    fn poll_datagram(
        &mut self,
        now: Duration,
        out: &mut Vec<u8>,
        store: &mut impl Store,
    ) -> Option<Option<Address>>;

    /// When to ask again.
    fn deadline(&mut self) -> Option<Duration>;

    /// What has happened; asked until there is nothing.
    fn poll_event(&mut self) -> Option<News>;

    /// The trace of its sessions; `None` where it keeps none.
    fn trace(&mut self) -> Option<&mut Trace> {
        None
    }

    /// What is in a datagram, for those who look for a fault.
    fn describe(_datagram: &[u8]) -> String {
        String::new()
    }
}
