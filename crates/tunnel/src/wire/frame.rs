//! Frames: the contents of a packet.

use std::ops::RangeInclusive;

use super::{
    CloseCode, FrameError, Report,
    varint::{self, Reader, in_range},
};

/// Maximum length of a close reason, in bytes.
pub const REASON_MAX: usize = 256;
/// Maximum number of encoders of a sender: channels are below this.
pub const CHANNELS: u8 = 2;
/// Bytes of a segment in a packet before its parts.
pub const SEGMENT_HEADER_LEN: usize = 5;
/// Bytes of FEC in a packet before fec's header and payload.
pub const CODED_HEADER_LEN: usize = 2;
/// Bytes of a datagram frame before its message.
pub const PACKET_HEADER_LEN: usize = 2;
/// Bytes of a path challenge, and of its answer.
pub const PATH_FRAME_LEN: usize = 1 + 8;
/// Maximum number of frames in a packet, where a run of padding counts as one.
pub const FRAMES_MAX: usize = 32;
/// Channels of datagrams are below this.
pub const PACKET_CHANNELS: u8 = 0x80;

const PADDING: u8 = 0x00;
const REPORT: u8 = 0x01;
const SEGMENT: u8 = 0x02;
const PROBE: u8 = 0x03;
const MTU_PROBE: u8 = 0x04;
const MTU_ACK: u8 = 0x05;
const CLOSE: u8 = 0x06;
const PATH_CHALLENGE: u8 = 0x07;
const PATH_RESPONSE: u8 = 0x08;
const CODED: u8 = 0x0a;
const PACKET: u8 = 0x0b;
/// Frames of later versions, which have a length.
const LATER: RangeInclusive<u8> = 0x20..=0x3f;

/// Flag in the channel byte of a datagram: the inner packet was already marked.
const MARKED: u8 = PACKET_CHANNELS;

/// A frame of a packet.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame<'a> {
    /// Padding, `0x00`: a single byte.
    Padding,
    /// Report of received packets and segments, `0x01`.
    Report(Report),
    /// Request for an immediate report, `0x03`. Has no contents.
    Probe,
    /// Probe of the path MTU, `0x04`: identifier (16 bits). The packet is padded to the tested size
    /// (RFC 8899 §4.1).
    MtuProbe {
        /// Identifier of the probe.
        id: u16,
    },
    /// Acknowledgement of an MTU probe, `0x05`: identifier (16 bits).
    MtuAck {
        /// Identifier of the probe.
        id: u16,
    },
    /// End of the session, `0x06`: code (8 bits), length of the reason, reason.
    Close {
        /// Reason as a code.
        code: CloseCode,
        /// Reason as text, at most [`REASON_MAX`] bytes of UTF-8. Longer text is cut when it is
        /// written.
        reason: &'a str,
    },
    /// Challenge, `0x07`: the peer answers with the token (64 bits), which proves that it receives
    /// where the challenge was sent (RFC 9000 §8.2).
    PathChallenge {
        /// Token, not to be guessed.
        token: u64,
    },
    /// Answer to a challenge, `0x08`: token (64 bits).
    PathResponse {
        /// Token of the challenge.
        token: u64,
    },
    /// Segment: parts of streams that are retransmitted until acknowledged, `0x02`. Fills the
    /// packet.
    Segment {
        /// Low 32 bits of the segment's number.
        seq: u32,
        /// Sequence of [`Part`](super::Part)s.
        parts: &'a [u8],
    },
    /// FEC-protected payload, `0x0a`. Fills the packet.
    Coded {
        /// Encoder of the sender: 0 for interactive, 1 for normal streams.
        channel: u8,
        /// FEC header ([`fec::wire::Header`]), not parsed here, and its payload.
        protected: &'a [u8],
    },
    /// Datagram (RFC 9221), `0x0b`: sent once, never retransmitted. Fills the packet.
    Packet {
        /// Application-defined channel, below [`PACKET_CHANNELS`].
        channel: u8,
        /// True if the inner packet was marked before it entered the tunnel. The mark was copied to
        /// the outer datagram, so it does not indicate congestion on the link.
        marked: bool,
        /// Payload, opaque here; one byte or more.
        message: &'a [u8],
    },
    /// Frame of a later version, `0x20` to `0x3f`: length, content. Skipped.
    Later {
        /// Type of the frame.
        kind: u8,
        /// Content, unknown here.
        content: &'a [u8],
    },
}

impl Frame<'_> {
    /// Returns the frame's length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no frame is empty")]
    pub fn len(&self) -> usize {
        match self {
            Self::Padding | Self::Probe => 1,
            Self::Report(report) => 1 + report.len(),
            Self::MtuProbe { .. } | Self::MtuAck { .. } => 3,
            Self::Close { reason, .. } => {
                let len = cut(reason).len();
                2 + varint::len(len as u64) + len
            }
            Self::PathChallenge { .. } | Self::PathResponse { .. } => PATH_FRAME_LEN,
            Self::Segment { parts, .. } => SEGMENT_HEADER_LEN + parts.len(),
            Self::Coded { protected, .. } => CODED_HEADER_LEN + protected.len(),
            Self::Packet { message, .. } => PACKET_HEADER_LEN + message.len(),
            Self::Later { content, .. } => later_len(content),
        }
    }

    /// Appends the frame to a packet.
    pub fn emit(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Padding => out.push(PADDING),
            Self::Report(ref report) => {
                out.push(REPORT);
                report.emit(out);
            }
            Self::Probe => out.push(PROBE),
            Self::MtuProbe { id } => emit_id(MTU_PROBE, id, out),
            Self::MtuAck { id } => emit_id(MTU_ACK, id, out),
            Self::Close { code, reason } => emit_close(code, cut(reason), out),
            Self::PathChallenge { token } => emit_token(PATH_CHALLENGE, token, out),
            Self::PathResponse { token } => emit_token(PATH_RESPONSE, token, out),
            Self::Segment { seq, parts } => {
                emit_segment_header(seq, out);
                out.extend_from_slice(parts);
            }
            Self::Coded { channel, protected } => {
                emit_coded_header(channel, out);
                out.extend_from_slice(protected);
            }
            Self::Packet {
                channel,
                marked,
                message,
            } => {
                emit_packet_type(out);
                out.push(packet_channel(channel, marked));
                out.extend_from_slice(message);
            }
            Self::Later { kind, content } => emit_later(kind, content, out),
        }
    }
}

/// Appends the header of a segment; its parts must follow and fill the packet.
pub fn emit_segment_header(seq: u32, out: &mut Vec<u8>) {
    out.push(SEGMENT);
    out.extend_from_slice(&seq.to_be_bytes());
}

/// Appends the header of a coded frame; fec's header and payload must follow and fill the packet.
pub fn emit_coded_header(channel: u8, out: &mut Vec<u8>) {
    out.extend_from_slice(&[CODED, channel]);
}

/// Appends the type of a datagram frame; its [channel](packet_channel) and message must follow and
/// fill the packet.
pub fn emit_packet_type(out: &mut Vec<u8>) {
    out.push(PACKET);
}

/// Returns the channel byte of a datagram frame, with the flag for a mark on the inner packet.
#[must_use]
pub fn packet_channel(channel: u8, marked: bool) -> u8 {
    let mark = if marked { MARKED } else { 0 };
    (channel % PACKET_CHANNELS) | mark
}

fn emit_id(kind: u8, id: u16, out: &mut Vec<u8>) {
    out.push(kind);
    out.extend_from_slice(&id.to_be_bytes());
}

fn emit_token(kind: u8, token: u64, out: &mut Vec<u8>) {
    out.push(kind);
    out.extend_from_slice(&token.to_be_bytes());
}

fn emit_close(code: CloseCode, reason: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&[CLOSE, code as u8]);
    varint::emit(reason.len() as u64, out);
    out.extend_from_slice(reason.as_bytes());
}

/// Returns the length of a frame or part of a later version with this content.
pub(super) fn later_len(content: &[u8]) -> usize {
    1 + varint::len(content.len() as u64) + content.len()
}

/// Appends a frame or part of a later version.
pub(super) fn emit_later(kind: u8, content: &[u8], out: &mut Vec<u8>) {
    out.push(kind);
    varint::emit(content.len() as u64, out);
    out.extend_from_slice(content);
}

/// Parses what follows the type of a frame or part of a later version.
pub(super) fn parse_later<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], FrameError> {
    let len = usize::try_from(reader.varint()?).map_err(|_| FrameError::Short)?;
    reader.bytes(len)
}

/// Returns the longest prefix of a reason that may be sent.
fn cut(reason: &str) -> &str {
    let ends = (0..=REASON_MAX.min(reason.len())).rev();
    let end = ends.into_iter().find(|end| reason.is_char_boundary(*end));
    &reason[..end.unwrap_or(0)]
}

/// Iterator over the frames of a packet. Ends after the first error.
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    reader: Reader<'a>,
    /// A run of padding counts as one frame.
    joins: bool,
}

impl<'a> Frames<'a> {
    /// Iterates over a packet, or the payload of a coded data packet.
    #[must_use]
    pub fn new(packet: &'a [u8]) -> Self {
        let reader = Reader::new(packet);
        Self {
            reader,
            joins: false,
        }
    }

    /// Iterates over a packet; a run of padding is one frame.
    #[must_use]
    pub fn with_padding_joined(packet: &'a [u8]) -> Self {
        Self {
            joins: true,
            ..Self::new(packet)
        }
    }

    fn parse(&mut self) -> Result<Frame<'a>, FrameError> {
        let reader = &mut self.reader;
        Ok(match reader.u8()? {
            PADDING => {
                if self.joins {
                    reader.skip_zeros();
                }
                Frame::Padding
            }
            REPORT => Frame::Report(Report::parse(reader)?),
            SEGMENT => Frame::Segment {
                seq: reader.u32()?,
                parts: reader.rest(),
            },
            PROBE => Frame::Probe,
            MTU_PROBE => Frame::MtuProbe { id: reader.u16()? },
            MTU_ACK => Frame::MtuAck { id: reader.u16()? },
            CLOSE => parse_close(reader)?,
            PATH_CHALLENGE => Frame::PathChallenge {
                token: reader.u64()?,
            },
            PATH_RESPONSE => Frame::PathResponse {
                token: reader.u64()?,
            },
            CODED => parse_coded(reader)?,
            PACKET => parse_packet(reader)?,
            kind if LATER.contains(&kind) => Frame::Later {
                kind,
                content: parse_later(reader)?,
            },
            unknown => return Err(FrameError::Unknown(unknown)),
        })
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, FrameError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.reader.is_empty() {
            return None;
        }
        let frame = self.parse();
        if frame.is_err() {
            self.reader.rest();
        }
        Some(frame)
    }
}

impl std::iter::FusedIterator for Frames<'_> {}

fn parse_close<'a>(reader: &mut Reader<'a>) -> Result<Frame<'a>, FrameError> {
    let code = CloseCode::from_wire(reader.u8()?);
    let reason = reader.counted("reason", REASON_MAX)?;
    let reason = std::str::from_utf8(reason).map_err(|_| FrameError::Text)?;
    Ok(Frame::Close { code, reason })
}

fn parse_coded<'a>(reader: &mut Reader<'a>) -> Result<Frame<'a>, FrameError> {
    let channel = reader.u8()?;
    in_range("channel", channel < CHANNELS, channel.into())?;
    let protected = reader.rest();
    Ok(Frame::Coded { channel, protected })
}

fn parse_packet<'a>(reader: &mut Reader<'a>) -> Result<Frame<'a>, FrameError> {
    let channel = reader.u8()?;
    let message = reader.rest();
    if message.is_empty() {
        return Err(FrameError::Short);
    }
    Ok(Frame::Packet {
        channel: channel % PACKET_CHANNELS,
        marked: channel & MARKED != 0,
        message,
    })
}
