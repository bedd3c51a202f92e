//! What is in a packet, which is what a datagram seals: frames, one after the other.
//!
//! Numbers are variable-length integers (RFC 9000 §16) where nothing else is said, and in network
//! byte order. The drawings are in docs/tunnel.md.
//!
//! ```text
//! packet  = *frame [SEGMENT | CODED]         the last one fills the packet
//! SEGMENT = 0x02 seq:32 *part                sent again, with this number, until it is acknowledged
//! CODED   = 0x0a channel:8 header payload    fec's header; the payload is frames, or a repair symbol
//! ```

mod report;

pub use report::{Gap, Highest, Report, Span};

/// The number of a stream: even ones are opened by the side that began the session, odd ones by
/// the other.
pub type StreamId = u64;

/// What a packet consists of.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame<'a> {
    /// Nothing, `0x00`, of one byte.
    Padding,
    /// What the sender of this has received, `0x01`.
    Report(Report),
    /// Asks for a report now, `0x03`. Needs no room.
    Probe,
    /// Says how large a datagram may be that comes through, `0x04`: an identifier (16 bits). The packet
    /// is padded to the size that is tried (RFC 8899 §4.1).
    MtuProbe {
        /// Which one.
        id: u16,
    },
    /// An MTU probe has arrived, `0x05`.
    MtuAck {
        /// Which one.
        id: u16,
    },
    /// The session is over, `0x06`.
    Close {
        /// Why, for programs.
        code: CloseCode,
        /// Why, for people; at most [`REASON_MAX`] bytes of UTF-8.
        reason: &'a str,
    },
    /// Parts of streams that are sent again until they are acknowledged, `0x02`. Fills the packet.
    Segment {
        /// The low 32 bits of its number.
        seq: u32,
        /// [`Part`]s, one after the other.
        parts: &'a [u8],
    },
    /// Protected by overcode, `0x0a`. Fills the packet.
    Coded {
        /// Which encoder of the sender: 0 for interactive, 1 for normal streams.
        channel: u8,
        /// Its header ([`fec::wire::Header`]) and what follows it.
        protected: &'a [u8],
    },
}

/// What a segment consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// A stream begins, `0x40`: identifier, class (8 bits), length of the greeting, greeting.
    Open {
        /// Its number.
        stream: StreamId,
        /// How its bytes are sent, both ways.
        class: crate::class::Class,
        /// What the other side needs to know, at most [`GREETING_MAX`] bytes.
        greeting: &'a [u8],
    },
    /// Bytes of a stream, `0x42` to `0x45`: identifier, position of the first byte, then, if the lowest bit of
    /// the type is set, their length; otherwise they fill the segment. The second bit says that the stream
    /// ends after them... (0x42 none, 0x43 length, 0x44 fin, 0x45 fin and length)
    Data {
        /// Of which stream.
        stream: StreamId,
        /// The position of the first byte.
        from: u64,
        /// The bytes.
        bytes: &'a [u8],
        /// Whether the stream ends after them.
        fin: bool,
    },
    /// A stream is over in both directions at once, `0x46`: identifier, code.
    Reset {
        /// Which one.
        stream: StreamId,
        /// Why.
        code: ResetCode,
    },
    /// The peer may send the stream's bytes below this position, `0x47`: identifier, position.
    Credit {
        /// Of which stream.
        stream: StreamId,
        /// The first position that may not be sent.
        until: u64,
    },
    /// The peer may send so many bytes of all streams together, since the session began, `0x48`.
    SessionCredit {
        /// The sum of the streams' highest positions.
        until: u64,
    },
    /// From now on the stream's bytes are sent in that class, `0x49`: identifier, class (8 bits).
    Reclass {
        /// Of which stream.
        stream: StreamId,
        /// The class.
        class: crate::class::Class,
    },
}

/// Why a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CloseCode {
    /// The pepd ends or the configuration changed.
    Shutdown = 0,
    /// What the peer sent makes no sense.
    Protocol = 1,
    /// The peer holds more than it may.
    Limit = 2,
}

/// Why a stream ends at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ResetCode {
    /// A host reset its connection.
    Host = 0,
    /// The destination refused the connection.
    Refused = 1,
    /// The destination's network cannot be reached.
    Unreachable = 2,
    /// The destination does not answer.
    TimedOut = 3,
    /// The far pepd cannot take the flow: a limit, no such policy.
    Limit = 4,
    /// The session began anew, and what the stream had was lost with the old one.
    Restarted = 5,
    /// Something went wrong in a pepd.
    Internal = 6,
}

/// The longest greeting of a stream, in bytes.
pub const GREETING_MAX: usize = 256;
/// The longest reason of a close, in bytes.
pub const REASON_MAX: usize = 256;
