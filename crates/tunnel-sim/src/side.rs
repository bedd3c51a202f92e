//! Interface of the simulated ends.

use std::{fmt::Debug, ops::Range, time::Duration};

use trace::Trace;
use tunnel::{
    class::Class,
    session::{Event, LinkHint, PacketQueue, Session, SessionConfig, TooManyStreams},
    store::Store,
    wire::{ResetCode, StreamId},
};

/// End of the tunnel: 0 is the initiator, at the link's end A; 1 is the responder.
pub type End = usize;

/// Network address of an end, which may change.
pub type Address = u16;

/// Parameters from which an end is made.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Number of the end.
    pub end: End,
    /// Seed of the plan, for keys and the like.
    pub seed: u64,
    /// Number of earlier incarnations at this end.
    pub incarnation: u64,
    /// Address of the other end, if this one may know it.
    pub peer: Option<Address>,
    /// Configuration of the session.
    pub session: SessionConfig,
}

/// Output of a side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// A session has begun: the streams of the last one are gone.
    Fresh,
    /// The session has ended, and its streams with it.
    Gone,
    /// Event of the session.
    Session(Event),
}

/// Calls of an application to one end of a session, named as the methods of [`Session`].
pub trait Streams {
    /// Opens a stream.
    ///
    /// # Errors
    /// Fails if no more streams are allowed now.
    fn open(
        &mut self,
        class: Class,
        site: u32,
        stream_header: &[u8],
    ) -> Result<StreamId, TooManyStreams>;

    /// Declares bytes as written up to a position.
    fn written(&mut self, stream: StreamId, until: u64);

    /// Declares the end of the stream.
    fn finish(&mut self, stream: StreamId);

    /// Resets the stream.
    fn reset(&mut self, stream: StreamId, code: ResetCode);

    /// Allows the peer to send up to a position.
    fn allow(&mut self, stream: StreamId, until: u64);

    /// Asks the peer to send no more until it is allowed more. An end may leave that out.
    fn hold(&mut self, _stream: StreamId) {}

    /// Allows the peer to send this much in all.
    fn allow_session(&mut self, until: u64);

    /// Changes the class of the stream.
    fn set_class(&mut self, stream: StreamId, class: Class);

    /// Passes a hint about the link.
    fn hint(&mut self, now: Duration, link: LinkHint);

    /// Opens a queue of messages outside streams, if there may be one.
    fn open_packets(&mut self, _class: Class, _site: u32) -> Option<PacketQueue> {
        None
    }

    /// Notes that a queue has something to send.
    fn packets_ready(&mut self, _queue: PacketQueue) {}

    /// Returns out-of-order bytes held by the peer.
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

    fn hold(&mut self, stream: StreamId) {
        self.hold(stream);
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

/// Side of a tunnel as the simulator sees it: a session, an endpoint with one peer, or one with
/// faults to test the simulator.
pub trait Side: Sized {
    /// Interface for applications.
    type Streams: Streams;

    /// Creates a side at `now`.
    fn new(setup: &Setup, now: Duration) -> Self;

    /// Returns the interface for applications, if there is a session.
    fn streams(&mut self) -> Option<&mut Self::Streams>;

    /// Takes a datagram, which may have been damaged on the path.
    ///
    /// # Errors
    /// Fails if the peer violates the protocol.
    fn handle_datagram(
        &mut self,
        now: Duration,
        from: Address,
        datagram: &mut [u8],
        store: &mut impl Store,
    ) -> Result<(), String>;

    /// Appends the next datagram to `out`, if one is due, and returns its destination; `None` is
    /// the peer's initial address.
    fn poll_datagram(
        &mut self,
        now: Duration,
        out: &mut Vec<u8>,
        store: &mut impl Store,
    ) -> Option<Option<Address>>;

    /// Returns when to poll again.
    fn deadline(&mut self) -> Option<Duration>;

    /// Returns the next event, until there is none.
    fn poll_event(&mut self) -> Option<News>;

    /// Returns the trace of its sessions; `None` if it keeps none.
    fn trace(&mut self) -> Option<&mut Trace> {
        None
    }

    /// Describes a datagram, for debugging.
    fn describe(_datagram: &[u8]) -> String {
        String::new()
    }
}
