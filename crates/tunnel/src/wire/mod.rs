//! Packet format. A datagram seals one packet, which is a sequence of frames.
//!
//! Numbers are variable-length integers (RFC 9000 §16) unless stated otherwise, in network byte
//! order. docs/protocol.md has drawings.
//!
//! ```text
//! packet  = *frame [SEGMENT | CODED | PACKET] the last one fills the packet
//! SEGMENT = 0x02 seq:32 *part                retransmitted, with this number, until acknowledged
//! CODED   = 0x0a channel:8 header payload    fec's header; payload: frames or a repair symbol
//! PACKET  = 0x0b channel:8 message           datagram (RFC 9221), sent once
//! ```
//!
//! Parsing never panics, and takes memory proportional to the input, with a small constant. `emit`
//! writes everything that [`Frames`] and [`Parts`] return.

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
    CHANNELS, CODED_HEADER_LEN, FRAMES_MAX, Frame, Frames, PACKET_CHANNELS, PACKET_HEADER_LEN,
    PATH_FRAME_LEN, REASON_MAX, SEGMENT_HEADER_LEN, emit_coded_header, emit_packet_type,
    emit_segment_header, packet_channel,
};
pub use part::{Data, Fit, Part, Parts, STREAM_HEADER_MAX};
pub use report::{GAPS_MAX, Gap, Highest, RANGES_MAX, REPORT_LEN_BARE, Report, Span};

/// Bytes that a datagram adds to its packet: type, receiver, low bits of the packet number, tag.
pub const DATAGRAM_OVERHEAD: usize = 1 + 4 + 4 + 16;

/// Number of a stream: even for streams opened by the session's initiator, odd for the responder's.
pub type StreamId = u64;

/// Parse error of a frame or part. The session that sent it is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The packet ends within a frame.
    #[error("the packet ends within a frame")]
    Short,
    /// Unknown frame or part type, possibly of a later version.
    #[error("unknown type {0:#04x}")]
    Unknown(u8),
    /// A field has an invalid value.
    #[error("{field} {value} out of range")]
    Range {
        /// Name of the field, as in the drawings.
        field: &'static str,
        /// Value of the field.
        value: u64,
    },
    /// A text field is not UTF-8.
    #[error("text that is not UTF-8")]
    Text,
}

/// Returns the number nearest to `expected` whose low 32 bits are `truncated` (as RFC 9000 §A.3);
/// the higher one of two equally near.
///
/// Correct if the number and `expected` differ by less than 2^31.
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
