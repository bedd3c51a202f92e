//! Errors of a session.

use crate::{
    coding::CodedError,
    delivery::ReportError,
    stream::StreamError,
    wire::{FRAMES_MAX, FrameError},
};

/// The peer's stream limit is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("peer's stream limit reached")]
pub struct TooManyStreams;

/// The limit of datagram queues is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("limit of datagram queues reached")]
pub struct TooManyQueues;

/// An authenticated but invalid packet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// A frame or part does not parse.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// FEC data contradicts what was sent before.
    #[error(transparent)]
    Coded(#[from] CodedError),
    /// A stream rule was violated.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// A report is invalid.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// The packet has more frames than any needs.
    #[error("more than {FRAMES_MAX} frames in a packet")]
    Frames,
    /// The packet is longer than the terms of the session permit.
    #[error("longer than `packet_max`")]
    Length,
    /// FEC protects something other than a segment.
    #[error("FEC payload is not a segment")]
    Content,
}
