//! What a packet consists of.

use super::{
    CloseCode, FrameError, Report,
    varint::{self, Reader, in_range},
};

/// The longest reason of a close, in bytes.
pub const REASON_MAX: usize = 256;
/// How many encoders a sender may have: channels are below this.
pub const CHANNELS: u8 = 2;
/// What a segment takes in a packet beyond its parts.
pub const SEGMENT_HEADER_LEN: usize = 5;
/// What overcode takes in a packet beyond fec's header and what follows it.
pub const CODED_HEADER_LEN: usize = 2;
/// What a packet beside streams takes beyond its message.
pub const PACKET_HEADER_LEN: usize = 2;
/// Channels of packets beside streams are below this.
pub const PACKET_CHANNELS: u8 = 0x80;

const PADDING: u8 = 0x00;
const REPORT: u8 = 0x01;
const SEGMENT: u8 = 0x02;
const PROBE: u8 = 0x03;
const MTU_PROBE: u8 = 0x04;
const MTU_ACK: u8 = 0x05;
const CLOSE: u8 = 0x06;
const CODED: u8 = 0x0a;
const PACKET: u8 = 0x0b;

/// With the channel of a packet: it was marked before it came into the tunnel.
const MARKED: u8 = PACKET_CHANNELS;

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
    /// An MTU probe has arrived, `0x05`: its identifier (16 bits).
    MtuAck {
        /// Which one.
        id: u16,
    },
    /// The session is over, `0x06`: code (8 bits), length of the reason, reason.
    Close {
        /// Why, for programs.
        code: CloseCode,
        /// Why, for people; at most [`REASON_MAX`] bytes of UTF-8. What is longer is cut when it is written.
        reason: &'a str,
    },
    /// Parts of streams that are sent again until they are acknowledged, `0x02`. Fills the packet.
    Segment {
        /// The low 32 bits of its number.
        seq: u32,
        /// [`Part`](super::Part)s, one after the other.
        parts: &'a [u8],
    },
    /// Protected by overcode, `0x0a`. Fills the packet.
    Coded {
        /// Which encoder of the sender: 0 for interactive, 1 for normal streams.
        channel: u8,
        /// Its header ([`fec::wire::Header`]), which is not looked at here, and what follows it.
        protected: &'a [u8],
    },
    /// A packet beside streams, `0x0b`, which is sent once. Fills the packet.
    Packet {
        /// What its senders and receivers have agreed on, below [`PACKET_CHANNELS`].
        channel: u8,
        /// It was marked before it came into the tunnel, and so was the datagram from the beginning: that says nothing of the link.
        marked: bool,
        /// Not looked at here; of one byte at least.
        message: &'a [u8],
    },
}

impl Frame<'_> {
    /// How many bytes it takes.
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
            Self::Segment { parts, .. } => SEGMENT_HEADER_LEN + parts.len(),
            Self::Coded { protected, .. } => CODED_HEADER_LEN + protected.len(),
            Self::Packet { message, .. } => PACKET_HEADER_LEN + message.len(),
        }
    }

    /// Appends it to a packet.
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
        }
    }
}

/// Begins a segment, the parts of which are to follow as all the rest of the packet.
pub fn emit_segment_header(seq: u32, out: &mut Vec<u8>) {
    out.push(SEGMENT);
    out.extend_from_slice(&seq.to_be_bytes());
}

/// Begins what is protected by overcode; fec's header and its payload are to follow as all the rest of
/// the packet.
pub fn emit_coded_header(channel: u8, out: &mut Vec<u8>) {
    out.extend_from_slice(&[CODED, channel]);
}

/// Begins a packet beside streams; its [channel](packet_channel) and the message are to follow as all the rest of the packet.
pub fn emit_packet_type(out: &mut Vec<u8>) {
    out.push(PACKET);
}

/// The byte of the channel of a packet beside streams, which also says whether it was marked before.
#[must_use]
pub fn packet_channel(channel: u8, marked: bool) -> u8 {
    let mark = if marked { MARKED } else { 0 };
    (channel % PACKET_CHANNELS) | mark
}

fn emit_id(kind: u8, id: u16, out: &mut Vec<u8>) {
    out.push(kind);
    out.extend_from_slice(&id.to_be_bytes());
}

fn emit_close(code: CloseCode, reason: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&[CLOSE, code as u8]);
    varint::emit(reason.len() as u64, out);
    out.extend_from_slice(reason.as_bytes());
}

/// As much of a reason as may be sent.
fn cut(reason: &str) -> &str {
    let ends = (0..=REASON_MAX.min(reason.len())).rev();
    let end = ends.into_iter().find(|end| reason.is_char_boundary(*end));
    &reason[..end.unwrap_or(0)]
}

/// The frames of a packet. After the first error there are no more.
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    reader: Reader<'a>,
}

impl<'a> Frames<'a> {
    /// Of that packet, or of the payload of a coded data packet.
    #[must_use]
    pub fn new(packet: &'a [u8]) -> Self {
        let reader = Reader::new(packet);
        Self { reader }
    }

    fn parse(&mut self) -> Result<Frame<'a>, FrameError> {
        let reader = &mut self.reader;
        Ok(match reader.u8()? {
            PADDING => Frame::Padding,
            REPORT => Frame::Report(Report::parse(reader)?),
            SEGMENT => Frame::Segment {
                seq: reader.u32()?,
                parts: reader.rest(),
            },
            PROBE => Frame::Probe,
            MTU_PROBE => Frame::MtuProbe { id: reader.u16()? },
            MTU_ACK => Frame::MtuAck { id: reader.u16()? },
            CLOSE => parse_close(reader)?,
            CODED => parse_coded(reader)?,
            PACKET => parse_packet(reader)?,
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
    let number = reader.u8()?;
    let code = CloseCode::from_wire(number).ok_or(FrameError::Range {
        field: "code",
        value: number.into(),
    })?;
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
