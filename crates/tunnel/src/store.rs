//! Where the streams' bytes are: with the caller, who keeps them anyway.
//!
//! A session knows positions only. What its caller has said is [written](crate::session::Session::written)
//! it reads when it sends and when it sends again, until
//! [`Acked`](crate::session::Event::Acked) gives it back; what arrives it places at once where it
//! belongs, also when earlier bytes are missing, as far as the caller has
//! [allowed](crate::session::Session::allow).
//!
//! Packets beside streams stay with the caller likewise, until it is their turn: what is queued can still be changed, and what
//! has become old be dropped.

use std::time::Duration;

use crate::{ecn::Ecn, wire::StreamId};

/// Numbers of queues in the scheduler are this and above. On the wire they would not have room.
const FIRST: StreamId = 1 << 63;

/// A queue of packets at the caller's; no other one of the session ever is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PacketQueue(pub(crate) u32);

impl PacketQueue {
    /// Its number in the scheduler.
    pub(crate) fn pseudo(self) -> StreamId {
        FIRST | StreamId::from(self.0)
    }

    /// What the scheduler has by that number, if it is no stream.
    pub(crate) fn of(stream: StreamId) -> Option<Self> {
        (stream >= FIRST).then_some(Self(stream as u32))
    }
}

/// A packet beside streams that a [`Store`] has given away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextPacket {
    /// Whether its queue has another one. If not it is idle, until it is said to be
    /// [ready](crate::session::Session::set_packets_ready) again.
    pub more: bool,
    /// The mark of the packet that is carried; its datagram gets the same (RFC 6040 §4.1). [`Ecn::Ect0`] for what is no IP packet, as all else
    /// has that.
    pub ecn: Ecn,
}

/// The bytes of all streams of a session, and packets beside them.
pub trait Store {
    /// Copies the bytes to be sent of a stream, from position `from` on, until `into` is full.
    ///
    /// Asked only for bytes that are written and not yet acknowledged, neither [in order](crate::session::Event::Acked) nor
    /// [beyond](crate::session::Session::acked_beyond) others that are missing; the same bytes every time.
    fn read(&self, stream: StreamId, from: u64, into: &mut [u8]);

    /// Takes bytes of a stream that have arrived, the first of which has position `from`.
    ///
    /// Called only below what was allowed, and never for bytes that were reported
    /// [readable](crate::session::Event::Readable); but it may come twice, with the same bytes.
    fn place(&mut self, stream: StreamId, from: u64, bytes: &[u8]);

    /// A new session with the peer begins, whose streams are numbered anew: those of before are no more. Called by an
    /// [endpoint](crate::endpoint::Endpoint) before anything else of the new session, and before the events that tell of
    /// it. Of no concern to whoever serves one session alone.
    fn renew(&mut self) {}

    /// Appends the next packet of a queue to `out`: the channel, a byte below [`PACKET_CHANNELS`](crate::wire::PACKET_CHANNELS), and the message, of 1 to
    /// `room` bytes. It is sent at once, and nobody asks for it again. `None` if there is none after all, or nothing that fits; the queue is
    /// idle then.
    ///
    /// Asked only for queues that are [ready](crate::session::Session::set_packets_ready), when it is their turn. What is longer than `room`, which may
    /// be less than a moment ago, is the caller's to drop or to split.
    fn next_packet(
        &mut self,
        _queue: PacketQueue,
        _now: Duration,
        _room: usize,
        _out: &mut Vec<u8>,
    ) -> Option<NextPacket> {
        None
    }

    /// Takes a packet beside streams that has arrived, whose datagram had the mark `outer`. It comes once at most; in any order, with regard to
    /// streams, too. Called only where [these are taken](crate::session::SessionConfig::packets).
    fn packet(&mut self, _now: Duration, _channel: u8, _outer: Ecn, _message: &[u8]) {}
}
