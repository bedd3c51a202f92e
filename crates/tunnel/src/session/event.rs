//! Events of a session, for its owner.

use crate::{
    class::Class,
    wire::{CloseCode, ResetCode, StreamId},
};

/// An event of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer opened a stream; its credit is known.
    Opened {
        /// Number of the stream.
        stream: StreamId,
        /// Class of the stream.
        class: Class,
        /// Stream header sent by the opener.
        stream_header: Vec<u8>,
    },
    /// All bytes of the stream below `until` have been placed in the store.
    Readable {
        /// Number of the stream.
        stream: StreamId,
        /// First missing position.
        until: u64,
    },
    /// The stream's last byte is readable.
    Finished {
        /// Number of the stream.
        stream: StreamId,
    },
    /// The peer knows the stream, whichever end opened it, and has all bytes below `until`, which
    /// may be 0. The session does not read them again.
    Acked {
        /// Number of the stream.
        stream: StreamId,
        /// First unacknowledged position.
        until: u64,
    },
    /// The peer has reset the stream, which no longer exists.
    Reset {
        /// Number of the stream.
        stream: StreamId,
        /// Reason of the reset.
        code: ResetCode,
    },
    /// Both directions have ended and everything is acknowledged; the stream no longer exists.
    Closed {
        /// Number of the stream.
        stream: StreamId,
    },
    /// The link is down: nothing arrives from the peer.
    LinkDown,
    /// The link is up again.
    LinkUp,
    /// The peer closed the session.
    PeerClosed {
        /// Reason as a code.
        code: CloseCode,
        /// Reason as text.
        reason: String,
    },
}
