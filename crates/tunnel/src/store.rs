//! Access to the streams' bytes, which the caller keeps.
//!
//! A session knows positions only. It reads bytes that the caller reported as
//! [written](crate::session::Session::written) when it sends and retransmits them, until
//! [`Acked`](crate::session::Event::Acked) releases them. It places bytes that arrive at their
//! position at once, even when earlier bytes are missing, up to the position that the caller has
//! [allowed](crate::session::Session::allow).
//!
//! Datagrams (RFC 9221) stay with the caller, too, until their turn. The caller can therefore
//! change queued datagrams and drop outdated ones.

use std::time::Duration;

use crate::{ecn::Ecn, wire::StreamId};

/// Lowest number of a datagram queue in the scheduler. Stream numbers on the wire are smaller.
const FIRST: StreamId = 1 << 63;

/// A datagram queue of the caller; unique in its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PacketQueue(pub(crate) u32);

impl PacketQueue {
    /// Returns the queue's number in the scheduler.
    pub(crate) fn pseudo(self) -> StreamId {
        FIRST | StreamId::from(self.0)
    }

    /// Returns the queue with this number in the scheduler, if it is not a stream.
    pub(crate) fn from_stream(stream: StreamId) -> Option<Self> {
        (stream >= FIRST).then_some(Self(stream as u32))
    }
}

/// A datagram that a [`Store`] has handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextPacket {
    /// True if the queue holds another datagram. Otherwise the queue is idle until the caller sets
    /// it [ready](crate::session::Session::set_packets_ready) again.
    pub more: bool,
    /// ECN mark of the inner packet, copied to the outer datagram (RFC 6040 §4.1); [`Ecn::Ect0`] if
    /// the payload is not an IP packet.
    pub ecn: Ecn,
}

/// The bytes of all streams of a session, and its datagrams.
pub trait Store {
    /// Copies bytes of a stream to send, from position `from` on, until `into` is full.
    ///
    /// Called only for bytes that are written and not yet acknowledged, neither [in
    /// order](crate::session::Event::Acked) nor [beyond](crate::session::Session::acked_beyond)
    /// missing ones. Must return the same bytes every time.
    fn read(&self, stream: StreamId, from: u64, into: &mut [u8]);

    /// Takes bytes of a stream that have arrived; the first one has position `from`.
    ///
    /// Called only for bytes below the allowed position that were not reported
    /// [readable](crate::session::Event::Readable) before. May be called twice with the same bytes.
    fn place(&mut self, stream: StreamId, from: u64, bytes: &[u8]);

    /// Discards all streams: a new session with the peer begins, with new stream numbers. An
    /// [endpoint](crate::endpoint::Endpoint) calls it before anything else of the new session, and
    /// before the events that announce it. Not used with a single session.
    fn renew(&mut self) {}

    /// Appends the next datagram of a queue to `out`: the channel, a byte below
    /// [`PACKET_CHANNELS`](crate::wire::PACKET_CHANNELS), and the message of 1 to `room` bytes. The
    /// session sends it at once and never asks for it again. `None` if the queue is empty or
    /// nothing fits; the queue is then idle.
    ///
    /// Called only for queues that are [ready](crate::session::Session::set_packets_ready), on
    /// their turn. The caller drops or splits messages longer than `room`, which can shrink at any
    /// time.
    fn next_packet(
        &mut self,
        _queue: PacketQueue,
        _now: Duration,
        _room: usize,
        _out: &mut Vec<u8>,
    ) -> Option<NextPacket> {
        None
    }

    /// Takes a datagram that has arrived; `outer` is the mark of the UDP datagram that carried it.
    /// Called at most once per datagram, in any order, also relative to streams. Called only if
    /// [datagrams are enabled](crate::session::SessionConfig::packets).
    fn packet(&mut self, _now: Duration, _channel: u8, _outer: Ecn, _message: &[u8]) {}
}
