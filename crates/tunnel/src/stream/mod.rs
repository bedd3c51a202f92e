//! Streams by positions: what was written, sent, acknowledged, allowed and received of each.
//!
//! ```text
//!              open, or opened by the peer
//!                        |
//!                        v           both ends have finished, all acknowledged
//!                     +------+ --------------------------------------------------> +--------+
//!                     | open |            reset, by either side                    | closed |
//!                     +------+ --------------------------------------------------> +--------+
//!   half-closed: one direction has its end, the other goes on
//! ```

mod ids;
mod receive;
mod send;
mod table;

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
    /// A stream that only we could have opened, and have not.
    #[error("stream {0} was never opened")]
    NeverOpened(StreamId),
    /// A stream opened with a number of ours.
    #[error("stream {0} is not the peer's to open")]
    NotYours(StreamId),
}
