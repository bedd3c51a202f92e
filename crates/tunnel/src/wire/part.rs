//! Parts: the contents of a segment.

use std::ops::RangeInclusive;

use super::{
    FrameError, ResetCode, StreamId,
    frame::{emit_later, later_len, parse_later},
    varint::{self, Reader},
};
use crate::class::Class;

/// Maximum length of a stream header, in bytes.
pub const STREAM_HEADER_MAX: usize = 256;

const OPEN: u8 = 0x40;
/// Plus 1 with a length, plus 2 at the end of the stream.
const DATA: u8 = 0x42;
const DATA_LAST: u8 = 0x45;
const RESET: u8 = 0x46;
const CREDIT: u8 = 0x47;
const SESSION_CREDIT: u8 = 0x48;
const RECLASS: u8 = 0x49;
const HOLD: u8 = 0x4a;

/// Parts of later versions, which have a length.
const LATER: RangeInclusive<u8> = 0x60..=0x7f;

const WITH_LENGTH: u8 = 1;
const FIN: u8 = 2;

/// A part of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// Opening of a stream, `0x40`: identifier, class (8 bits), length of the stream header, stream
    /// header.
    Open {
        /// Number of the stream.
        stream: StreamId,
        /// Class of the stream, in both directions.
        class: Class,
        /// Stream header for the far end, at most [`STREAM_HEADER_MAX`] bytes; longer ones are cut.
        stream_header: &'a [u8],
    },
    /// Bytes of a stream, `0x42` to `0x45`: identifier, position of the first byte, length, bytes.
    /// `0x42` and `0x44` omit the length: the bytes fill the segment. `0x44` and `0x45` end the
    /// stream.
    Data {
        /// Number of the stream.
        stream: StreamId,
        /// Position of the first byte.
        from: u64,
        /// Bytes of the stream.
        bytes: &'a [u8],
        /// True if the stream ends after these bytes.
        fin: bool,
    },
    /// Reset of a stream in both directions, `0x46`: identifier, code (8 bits), position. A
    /// receiver that has not sent a reset answers with one. Both ends then know how many bytes
    /// count against the session's credit.
    Reset {
        /// Number of the stream.
        stream: StreamId,
        /// Reason of the reset.
        code: ResetCode,
        /// First position that the sender of this reset has never sent.
        sent: u64,
    },
    /// Credit of a stream, `0x47`: identifier, position. The peer may send the stream's bytes below
    /// this position.
    Credit {
        /// Number of the stream.
        stream: StreamId,
        /// First position that the peer may not send.
        until: u64,
    },
    /// Credit of the session, `0x48`: bytes of all streams together that the peer may send, since
    /// the session began.
    SessionCredit {
        /// Maximum sum of the streams' highest positions.
        until: u64,
    },
    /// Change of a stream's class, `0x49`: identifier, class (8 bits).
    Reclass {
        /// Number of the stream.
        stream: StreamId,
        /// New class.
        class: Class,
    },
    /// Request to send no further bytes of a stream, `0x4a`: identifier, position. It holds until
    /// the peer has credit above this position.
    Hold {
        /// Number of the stream.
        stream: StreamId,
        /// Credit of the stream, with or after which this was sent.
        until: u64,
    },
    /// Part of a later version, `0x60` to `0x7f`: length, content. Skipped.
    Later {
        /// Type of the part.
        kind: u8,
        /// Content, unknown here.
        content: &'a [u8],
    },
}

impl Part<'_> {
    /// Returns the part's stream; `None` if the part concerns all streams.
    #[must_use]
    pub fn stream(&self) -> Option<StreamId> {
        match *self {
            Self::Open { stream, .. }
            | Self::Data { stream, .. }
            | Self::Reset { stream, .. }
            | Self::Credit { stream, .. }
            | Self::Hold { stream, .. }
            | Self::Reclass { stream, .. } => Some(stream),
            Self::SessionCredit { .. } | Self::Later { .. } => None,
        }
    }

    /// Returns the part's length in bytes. `last` means that no other part follows in the segment:
    /// data then needs no length field.
    #[must_use]
    pub fn len(&self, last: bool) -> usize {
        match *self {
            Self::Open {
                stream,
                stream_header,
                ..
            } => {
                let len = cut(stream_header).len();
                2 + varint::len(stream) + varint::len(len as u64) + len
            }
            Self::Data {
                stream,
                from,
                bytes,
                fin,
            } => Data::new(stream, from, bytes.len(), fin).header_len(last) + bytes.len(),
            Self::Reset { stream, sent, .. } => 2 + varint::len(stream) + varint::len(sent),
            Self::Reclass { stream, .. } => 2 + varint::len(stream),
            Self::Credit { stream, until } | Self::Hold { stream, until } => {
                1 + varint::len(stream) + varint::len(until)
            }
            Self::SessionCredit { until } => 1 + varint::len(until),
            Self::Later { content, .. } => later_len(content),
        }
    }

    /// Appends the part to a segment; `last` as in [`len`](Self::len).
    pub fn emit(&self, last: bool, out: &mut Vec<u8>) {
        match *self {
            Self::Open {
                stream,
                class,
                stream_header,
            } => emit_open(stream, class, cut(stream_header), out),
            Self::Data {
                stream,
                from,
                bytes,
                fin,
            } => {
                Data::new(stream, from, bytes.len(), fin).emit_header(last, out);
                out.extend_from_slice(bytes);
            }
            Self::Reset { stream, code, sent } => {
                emit_byte(RESET, stream, code as u8, out);
                varint::emit(sent, out);
            }
            Self::Credit { stream, until } => emit_numbers(CREDIT, &[stream, until], out),
            Self::Hold { stream, until } => emit_numbers(HOLD, &[stream, until], out),
            Self::SessionCredit { until } => emit_numbers(SESSION_CREDIT, &[until], out),
            Self::Reclass { stream, class } => emit_byte(RECLASS, stream, class as u8, out),
            Self::Later { kind, content } => emit_later(kind, content, out),
        }
    }
}

fn emit_open(stream: StreamId, class: Class, stream_header: &[u8], out: &mut Vec<u8>) {
    emit_byte(OPEN, stream, class as u8, out);
    varint::emit(stream_header.len() as u64, out);
    out.extend_from_slice(stream_header);
}

fn emit_byte(kind: u8, stream: StreamId, byte: u8, out: &mut Vec<u8>) {
    emit_numbers(kind, &[stream], out);
    out.push(byte);
}

fn emit_numbers(kind: u8, numbers: &[u64], out: &mut Vec<u8>) {
    out.push(kind);
    for number in numbers {
        varint::emit(*number, out);
    }
}

/// Returns the longest prefix of a stream header that may be sent.
fn cut(stream_header: &[u8]) -> &[u8] {
    &stream_header[..stream_header.len().min(STREAM_HEADER_MAX)]
}

/// [`Part::Data`] without the bytes, which the caller writes after the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// Number of the stream.
    pub stream: StreamId,
    /// Position of the first byte.
    pub from: u64,
    /// Number of bytes.
    pub len: usize,
    /// True if the stream ends after these bytes.
    pub fin: bool,
}

/// Amount of data that fits into the rest of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// Number of bytes.
    pub len: usize,
    /// True if no part may follow in the segment: the length field is omitted.
    pub last: bool,
}

impl Data {
    /// Creates a range of `len` bytes of a stream.
    #[must_use]
    pub fn new(stream: StreamId, from: u64, len: usize, fin: bool) -> Self {
        Self {
            stream,
            from,
            len,
            fin,
        }
    }

    /// Returns the position after the last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.from.saturating_add(self.len as u64)
    }

    /// Returns the length of the part before the data; `last` as in [`Part::len`].
    #[must_use]
    pub fn header_len(&self, last: bool) -> usize {
        let length = if last {
            0
        } else {
            varint::len(self.len as u64)
        };
        1 + varint::len(self.stream) + varint::len(self.from) + length
    }

    /// Returns the length of the part, data included.
    #[must_use]
    pub fn part_len(&self, last: bool) -> usize {
        self.header_len(last) + self.len
    }

    /// Appends the header of the data; exactly `len` bytes must follow.
    pub fn emit_header(&self, last: bool, out: &mut Vec<u8>) {
        let length = if last { 0 } else { WITH_LENGTH };
        let fin = if self.fin { FIN } else { 0 };
        emit_numbers(DATA + length + fin, &[self.stream, self.from], out);
        if !last {
            varint::emit(self.len as u64, out);
        }
    }

    /// Returns how much of `available` bytes of a stream, from position `from` on, fits into `room`
    /// bytes of a segment; `None` if nothing does. For zero bytes (the end of a stream), the header
    /// must fit.
    ///
    /// Data that does not fill the room carries its length, if that fits, so that other parts may
    /// follow. [`Parts::is_whole`] relies on that.
    #[must_use]
    pub fn fit(stream: StreamId, from: u64, available: usize, room: usize) -> Option<Fit> {
        let whole = Self::new(stream, from, available, false);
        let most = room.checked_sub(whole.header_len(true))?;
        let len = available.min(most);
        let last = whole.part_len(false) > room;
        (len > 0 || available == 0).then_some(Fit { len, last })
    }
}

/// Iterator over the parts of a segment. Ends after the first error.
#[derive(Clone, Debug)]
pub struct Parts<'a> {
    reader: Reader<'a>,
    is_whole: bool,
}

impl<'a> Parts<'a> {
    /// Iterates over the parts of a segment.
    #[must_use]
    pub fn new(parts: &'a [u8]) -> Self {
        let reader = Reader::new(parts);
        Self {
            reader,
            is_whole: false,
        }
    }

    /// Returns true if the part returned last is data with a length. More data would have fitted
    /// behind it, so its stream had none that could be sent.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    fn parse(&mut self) -> Result<Part<'a>, FrameError> {
        let reader = &mut self.reader;
        let kind = reader.u8()?;
        self.is_whole = matches!(kind, DATA..=DATA_LAST) && (kind - DATA) & WITH_LENGTH != 0;
        Ok(match kind {
            OPEN => Part::Open {
                stream: reader.varint()?,
                class: parse_class(reader)?,
                stream_header: reader.counted("stream header", STREAM_HEADER_MAX)?,
            },
            DATA..=DATA_LAST => parse_data(kind - DATA, reader)?,
            RESET => Part::Reset {
                stream: reader.varint()?,
                code: parse_reset_code(reader)?,
                sent: reader.varint()?,
            },
            CREDIT => Part::Credit {
                stream: reader.varint()?,
                until: reader.varint()?,
            },
            SESSION_CREDIT => Part::SessionCredit {
                until: reader.varint()?,
            },
            RECLASS => Part::Reclass {
                stream: reader.varint()?,
                class: parse_class(reader)?,
            },
            HOLD => Part::Hold {
                stream: reader.varint()?,
                until: reader.varint()?,
            },
            kind if LATER.contains(&kind) => Part::Later {
                kind,
                content: parse_later(reader)?,
            },
            unknown => return Err(FrameError::Unknown(unknown)),
        })
    }
}

impl<'a> Iterator for Parts<'a> {
    type Item = Result<Part<'a>, FrameError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.reader.is_empty() {
            return None;
        }
        let part = self.parse();
        if part.is_err() {
            self.reader.rest();
        }
        Some(part)
    }
}

impl std::iter::FusedIterator for Parts<'_> {}

fn parse_data<'a>(flags: u8, reader: &mut Reader<'a>) -> Result<Part<'a>, FrameError> {
    let stream = reader.varint()?;
    let from = reader.varint()?;
    let bytes = if flags & WITH_LENGTH != 0 {
        let len = usize::try_from(reader.varint()?).map_err(|_| FrameError::Short)?;
        reader.bytes(len)?
    } else {
        reader.rest()
    };
    // A stream has no bytes beyond the maximum encodable position.
    varint::sum("end", from, bytes.len() as u64)?;
    Ok(Part::Data {
        stream,
        from,
        bytes,
        fin: flags & FIN != 0,
    })
}

fn parse_class(reader: &mut Reader<'_>) -> Result<Class, FrameError> {
    let number = reader.u8()?;
    Class::from_wire(number).ok_or(FrameError::Range {
        field: "class",
        value: number.into(),
    })
}

fn parse_reset_code(reader: &mut Reader<'_>) -> Result<ResetCode, FrameError> {
    let number = reader.u8()?;
    ResetCode::from_wire(number).ok_or(FrameError::Range {
        field: "code",
        value: number.into(),
    })
}
