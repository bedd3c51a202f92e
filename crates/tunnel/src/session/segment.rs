//! What a segment held when it was sent, so that it can be written again.

use smallvec::SmallVec;

use crate::{
    class::Class,
    coding::Channel,
    wire::{Data, ResetCode, StreamId},
};

/// What a segment consists of: positions of bytes, not the bytes.
#[derive(Debug, Default)]
pub(super) struct Segment {
    /// In the order of the wire.
    pub parts: SmallVec<[Sent; 2]>,
    /// What protected it when it was sent first.
    pub channel: Option<Channel>,
    /// How long its packet was, without the seal.
    pub len: usize,
}

/// A part of a segment. Written again, it says what is true then: of a stream that is no more
/// nothing, of a credit the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// A stream was opened, as this class.
    Open(StreamId, Class),
    /// Bytes of a stream.
    Data(Data),
    /// A stream was reset, of which so much had been sent.
    Reset(StreamId, ResetCode, u64),
    /// The peer was allowed more of a stream.
    Credit(StreamId),
    /// The peer was allowed more in all.
    SessionCredit,
    /// A stream's class was changed.
    Reclass(StreamId),
}
