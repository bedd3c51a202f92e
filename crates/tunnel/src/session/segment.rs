//! Content of a sent segment, from which it is rewritten for retransmission.

use smallvec::SmallVec;

use crate::{
    class::Class,
    coding::Channel,
    wire::{Data, ResetCode, StreamId},
};

/// Content of a segment: positions of bytes, not the bytes.
#[derive(Debug, Default)]
pub(super) struct Segment {
    /// Parts, in wire order.
    pub parts: SmallVec<[Sent; 2]>,
    /// FEC channel of the first transmission.
    pub channel: Option<Channel>,
    /// Length of its packet, without the seal.
    pub len: usize,
}

impl Segment {
    /// Returns the memory of the parts outside of this value, in bytes.
    pub(super) fn beyond(&self) -> usize {
        match self.parts.spilled() {
            true => self.parts.capacity() * size_of::<Sent>(),
            false => 0,
        }
    }
}

/// A part of a segment. Rewritten for retransmission with the current state: nothing for a closed
/// stream, the newest credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// Opening of a stream with a class.
    Open(StreamId, Class),
    /// Bytes of a stream.
    Data(Data),
    /// Reset of a stream, with the number of bytes sent on it.
    Reset(StreamId, ResetCode, u64),
    /// Credit of a stream.
    Credit(StreamId),
    /// Request to send no further bytes of a stream.
    Hold(StreamId),
    /// Credit of the session.
    SessionCredit,
    /// Change of a stream's class.
    Reclass(StreamId),
}
