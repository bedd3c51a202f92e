//! What a session tells its owner.

use crate::{
    class::Class,
    wire::{CloseCode, ResetCode, StreamId},
};

/// What has happened in a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer opened a stream; what it allows us is known.
    Opened {
        /// Its number.
        stream: StreamId,
        /// How its bytes are sent.
        class: Class,
        /// What the opener said.
        stream_header: Vec<u8>,
    },
    /// All bytes of the stream below `until` have been placed in the store.
    Readable {
        /// Of which stream.
        stream: StreamId,
        /// The first position that is missing.
        until: u64,
    },
    /// The stream's last byte is readable.
    Finished {
        /// Which stream.
        stream: StreamId,
    },
    /// The peer knows of the stream, which we have opened or it has, and has all bytes of it below `until`: perhaps none. They
    /// are not asked for again.
    Acked {
        /// Of which stream.
        stream: StreamId,
        /// The first position that is not acknowledged.
        until: u64,
    },
    /// The peer has reset the stream, which is no more.
    Reset {
        /// Which stream.
        stream: StreamId,
        /// Why.
        code: ResetCode,
    },
    /// Both ends of the stream have finished and everything is acknowledged: it is no more.
    Closed {
        /// Which stream.
        stream: StreamId,
    },
    /// Nothing comes from the peer any more.
    LinkDown,
    /// The peer is there again.
    LinkUp,
    /// The peer ended the session.
    PeerClosed {
        /// Why.
        code: CloseCode,
        /// In words.
        reason: String,
    },
}
