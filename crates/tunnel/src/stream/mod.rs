//! Streams by positions: what was written, sent, acknowledged, allowed and received of each.
//!
//! ```text
//!            open, or opened by the peer
//!                        |
//!                        v         both directions finished, all acknowledged
//!                    +------+ ---------------------------------------------------> +--------+
//!                    | open | reset by the peer, which gets a reset in return      | closed |
//!                    |      | ---------------------------------------------------> |        |
//!                    +------+           +-----------+    its reset, or its end     |        |
//!                        | reset by us  | resetting | ---------------------------> |        |
//!                        +------------> +-----------+                              +--------+
//! ```
//!
//! Each direction of an open stream ends by itself (half-close). A stream that is resetting is over for
//! its owner, and remembered only until it is known how much the peer has sent of it, which counts against the
//! session's credit though it may never arrive. Of closed streams nothing is remembered: numbers rise, so a
//! number that was opened and is not there was closed.

mod credit;
mod ids;
mod receive;
mod send;
mod table;
#[cfg(test)]
mod tests;

pub use receive::{News, ReceiveHalf};
pub use send::SendHalf;
pub use table::{Opening, Streams};

use crate::wire::StreamId;

/// Something that the peer may not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// Bytes beyond what it was allowed.
    #[error("stream {stream}: bytes up to {end}, where {allowed} are allowed")]
    Credit {
        /// Of which stream.
        stream: StreamId,
        /// The position after the last byte.
        end: u64,
        /// What was allowed.
        allowed: u64,
    },
    /// Bytes of all streams beyond what it was allowed.
    #[error("{sum} bytes of all streams, where {allowed} are allowed")]
    SessionCredit {
        /// The sum of the streams' highest positions.
        sum: u64,
        /// What was allowed.
        allowed: u64,
    },
    /// The stream ended elsewhere, or there are bytes beyond its end (RFC 9000 §4.5).
    #[error("stream {stream} ends at {one} and at {other}")]
    FinalSize {
        /// Which stream.
        stream: StreamId,
        /// One end.
        one: u64,
        /// The other.
        other: u64,
    },
    /// More pieces with something missing between them than fit into one window.
    #[error("stream {0} comes in too many pieces")]
    Pieces(StreamId),
    /// More streams than the peer may have, by far.
    #[error("stream {0} is one of too many")]
    TooMany(StreamId),
    /// A stream that only we could have opened, and have not; or one so far ahead that the peer cannot have.
    #[error("stream {0} was never opened")]
    NeverOpened(StreamId),
    /// A stream opened with a number of ours.
    #[error("stream {0} is not the peer's to open")]
    NotYours(StreamId),
}
