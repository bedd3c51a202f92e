//! What is in a packet, which is what a datagram seals: frames, one after the other.
//!
//! Numbers are variable-length integers (RFC 9000 §16) where nothing else is said, and in network
//! byte order. The drawings are in docs/tunnel.md.
//!
//! ```text
//! packet  = *frame [SEGMENT | CODED | PACKET] the last one fills the packet
//! SEGMENT = 0x02 seq:32 *part                sent again, with this number, until it is acknowledged
//! CODED   = 0x0a channel:8 header payload    fec's header; the payload is frames, or a repair symbol
//! PACKET  = 0x0b channel:8 message           sent once, beside streams
//! ```
//!
//! Whatever bytes are parsed, nothing panics, and no more memory is taken than the bytes themselves
//! take, times a small constant. What [`Frames`] and [`Parts`] return, `emit` writes again.

mod carried;
mod code;
mod frame;
mod part;
mod report;
#[cfg(test)]
mod tests;
pub mod varint;

pub use carried::{Carried, NoLength, append_carried};
pub use code::{CloseCode, ResetCode};
pub use frame::{
    CHANNELS, CODED_HEADER_LEN, Frame, Frames, PACKET_CHANNELS, PACKET_HEADER_LEN, REASON_MAX,
    SEGMENT_HEADER_LEN, emit_coded_header, emit_packet_type, emit_segment_header, packet_channel,
};
pub use part::{Data, Fit, GREETING_MAX, Part, Parts};
pub use report::{GAPS_MAX, Gap, Highest, RANGES_MAX, Report, Span};

/// What a datagram adds to the packet that it seals, in bytes: type, receiver, the low bits of the packet's number,
/// and the tag.
pub const DATAGRAM_OVERHEAD: usize = 1 + 4 + 4 + 16;

/// The number of a stream: even ones are opened by the side that began the session, odd ones by
/// the other.
pub type StreamId = u64;

/// Why bytes are no frame or part. The session that they came from makes no sense any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The packet ends within a frame.
    #[error("the packet ends within a frame")]
    Short,
    /// There is no such frame, or no such part; perhaps a later version's.
    #[error("unknown type {0:#04x}")]
    Unknown(u8),
    /// A field has a value that nobody writes.
    #[error("{field} {value} out of range")]
    Range {
        /// The field's name in the drawings.
        field: &'static str,
        /// What it says.
        value: u64,
    },
    /// What should be text is not UTF-8.
    #[error("text that is not UTF-8")]
    Text,
}

/// The number nearest to `expected` of those whose low 32 bits are `truncated` (as RFC 9000 §A.3); of
/// two that are equally near, the higher one.
///
/// Right as long as the number and `expected` are less than 2^31 apart.
#[must_use]
pub fn expand(truncated: u32, expected: u64) -> u64 {
    let ahead = truncated.wrapping_sub(expected as u32);
    let above = expected.checked_add(ahead.into());
    let below = expected.checked_sub(ahead.wrapping_neg().into());
    match (above, below) {
        (Some(above), Some(_)) if ahead <= 1 << 31 => above,
        (_, Some(below)) => below,
        (above, None) => above.unwrap_or(expected),
    }
}
