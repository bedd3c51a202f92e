//! What a session does not take.

use crate::{coding::CodedError, delivery::ReportError, stream::StreamError, wire::FrameError};

/// There are as many streams as the peer takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("as many streams are open as the peer takes")]
pub struct TooManyStreams;

/// There are as many queues of packets as there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there are as many queues of packets as there may be")]
pub struct TooManyQueues;

/// A packet, though sealed by the peer, that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// A frame or part does not parse.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// Overcode does not fit what was sent before.
    #[error(transparent)]
    Coded(#[from] CodedError),
    /// A stream is used in a way that was not agreed.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// A report that cannot be true.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// Something else than a segment was protected by overcode.
    #[error("what overcode protects is no segment")]
    Content,
}
