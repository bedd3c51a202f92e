//! Streams by positions: bytes written, sent, acknowledged, allowed and received.
//!
//! ```text
//!            open, or opened by the peer
//!                        |
//!                        v         both directions finished, all acknowledged
//!                    +------+ --------------------------------------------> +--------+
//!                    | open | reset by the peer, answered with a reset      | closed |
//!                    |      | --------------------------------------------> |        |
//!                    +------+        +-----------+  peer's reset, or end   |        |
//!                        | reset     | resetting | ----------------------> |        |
//!                        +---------> +-----------+                         +--------+
//! ```
//!
//! Each direction of an open stream ends separately (half-close). A resetting stream is over for
//! its owner. The session remembers it until it knows how many bytes the peer has sent, as these
//! count against the session's credit even if they never arrive. Closed streams are forgotten:
//! numbers rise, so a number below the highest that is not present was closed.

mod credit;
mod ids;
mod receive;
mod send;
mod steady;
mod table;
#[cfg(test)]
mod tests;

pub use receive::{News, ReceiveState};
pub use send::SendState;
pub use table::{Opening, Streams};

use crate::wire::StreamId;

/// A violation of stream rules by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// Bytes of a stream beyond its credit.
    #[error("stream {stream}: bytes up to {end}, where {allowed} are allowed")]
    Credit {
        /// Number of the stream.
        stream: StreamId,
        /// Position after the last byte.
        end: u64,
        /// Allowed position.
        allowed: u64,
    },
    /// Bytes of all streams beyond the session's credit.
    #[error("{sum} bytes of all streams, where {allowed} are allowed")]
    SessionCredit {
        /// Sum of the streams' highest positions.
        sum: u64,
        /// Allowed sum.
        allowed: u64,
    },
    /// The stream ended elsewhere, or has bytes beyond its end (RFC 9000 §4.5).
    #[error("stream {stream} ends at {one} and at {other}")]
    FinalSize {
        /// Number of the stream.
        stream: StreamId,
        /// First end.
        one: u64,
        /// Second end.
        other: u64,
    },
    /// Far more streams than the peer may have.
    #[error("stream {0}: too many streams")]
    TooMany(StreamId),
    /// A stream that only the local end could have opened but has not, or one too far ahead.
    #[error("stream {0} was never opened")]
    NeverOpened(StreamId),
    /// The peer opened a stream with a number of the local end.
    #[error("stream {0}: opened with a number of the local end")]
    NotYours(StreamId),
}
