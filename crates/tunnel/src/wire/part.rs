//! What a segment consists of.

use super::{
    FrameError, ResetCode, StreamId,
    varint::{self, Reader},
};
use crate::class::Class;

/// The longest greeting of a stream, in bytes.
pub const GREETING_MAX: usize = 256;

const OPEN: u8 = 0x40;
/// Plus 1 with a length, plus 2 at the end of the stream.
const DATA: u8 = 0x42;
const DATA_LAST: u8 = 0x45;
const RESET: u8 = 0x46;
const CREDIT: u8 = 0x47;
const SESSION_CREDIT: u8 = 0x48;
const RECLASS: u8 = 0x49;

const WITH_LENGTH: u8 = 1;
const FIN: u8 = 2;

/// What a segment consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// A stream begins, `0x40`: identifier, class (8 bits), length of the greeting, greeting.
    Open {
        /// Its number.
        stream: StreamId,
        /// How its bytes are sent, both ways.
        class: Class,
        /// What the other side needs to know, at most [`GREETING_MAX`] bytes; no more is written.
        greeting: &'a [u8],
    },
    /// Bytes of a stream, `0x42` to `0x45`: identifier, position of the first byte, length, bytes. `0x42` and
    /// `0x44` are without the length: the bytes fill the segment. The stream ends after those of `0x44` and `0x45`.
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
    /// A stream is over in both directions at once, `0x46`: identifier, code (8 bits), position. Who gets it
    /// without having sent one answers with one, so that both know how much counts against the
    /// session's credit.
    Reset {
        /// Which one.
        stream: StreamId,
        /// Why.
        code: ResetCode,
        /// The first position that the sender of this has never sent.
        sent: u64,
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
        class: Class,
    },
}

impl Part<'_> {
    /// The stream that it is about; none if it is about all of them.
    #[must_use]
    pub fn stream(&self) -> Option<StreamId> {
        match *self {
            Self::Open { stream, .. }
            | Self::Data { stream, .. }
            | Self::Reset { stream, .. }
            | Self::Credit { stream, .. }
            | Self::Reclass { stream, .. } => Some(stream),
            Self::SessionCredit { .. } => None,
        }
    }

    /// How many bytes it takes. `last` says that no other part follows in its segment: data then needs
    /// no length.
    #[must_use]
    pub fn len(&self, last: bool) -> usize {
        match *self {
            Self::Open {
                stream, greeting, ..
            } => {
                let len = cut(greeting).len();
                2 + varint::len(stream) + varint::len(len as u64) + len
            }
            Self::Data {
                stream,
                from,
                bytes,
                fin,
            } => Data::of(stream, from, bytes.len(), fin).header_len(last) + bytes.len(),
            Self::Reset { stream, sent, .. } => 2 + varint::len(stream) + varint::len(sent),
            Self::Reclass { stream, .. } => 2 + varint::len(stream),
            Self::Credit { stream, until } => 1 + varint::len(stream) + varint::len(until),
            Self::SessionCredit { until } => 1 + varint::len(until),
        }
    }

    /// Appends it to a segment, of which it is the last part or not.
    pub fn emit(&self, last: bool, out: &mut Vec<u8>) {
        match *self {
            Self::Open {
                stream,
                class,
                greeting,
            } => emit_open(stream, class, cut(greeting), out),
            Self::Data {
                stream,
                from,
                bytes,
                fin,
            } => {
                Data::of(stream, from, bytes.len(), fin).emit_header(last, out);
                out.extend_from_slice(bytes);
            }
            Self::Reset { stream, code, sent } => {
                emit_byte(RESET, stream, code as u8, out);
                varint::emit(sent, out);
            }
            Self::Credit { stream, until } => emit_numbers(CREDIT, &[stream, until], out),
            Self::SessionCredit { until } => emit_numbers(SESSION_CREDIT, &[until], out),
            Self::Reclass { stream, class } => emit_byte(RECLASS, stream, class as u8, out),
        }
    }
}

fn emit_open(stream: StreamId, class: Class, greeting: &[u8], out: &mut Vec<u8>) {
    emit_byte(OPEN, stream, class as u8, out);
    varint::emit(greeting.len() as u64, out);
    out.extend_from_slice(greeting);
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

/// As much of a greeting as may be sent.
fn cut(greeting: &[u8]) -> &[u8] {
    &greeting[..greeting.len().min(GREETING_MAX)]
}

/// [`Part::Data`] without the bytes, which the caller writes behind the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// Of which stream.
    pub stream: StreamId,
    /// The position of the first byte.
    pub from: u64,
    /// How many bytes.
    pub len: usize,
    /// Whether the stream ends after them.
    pub fin: bool,
}

/// How much data fits into what is left of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// How many bytes.
    pub len: usize,
    /// Nothing may follow them in the segment: they are written without their length.
    pub last: bool,
}

impl Data {
    /// So many bytes of a stream.
    #[must_use]
    pub fn of(stream: StreamId, from: u64, len: usize, fin: bool) -> Self {
        Self {
            stream,
            from,
            len,
            fin,
        }
    }

    /// The position after the last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.from.saturating_add(self.len as u64)
    }

    /// How many bytes stand before the data, in a part that is the `last` one of its segment or not.
    #[must_use]
    pub fn header_len(&self, last: bool) -> usize {
        let length = if last {
            0
        } else {
            varint::len(self.len as u64)
        };
        1 + varint::len(self.stream) + varint::len(self.from) + length
    }

    /// How many bytes the part takes, data included.
    #[must_use]
    pub fn part_len(&self, last: bool) -> usize {
        self.header_len(last) + self.len
    }

    /// Appends what stands before the data; exactly `len` bytes must follow.
    pub fn emit_header(&self, last: bool, out: &mut Vec<u8>) {
        let length = if last { 0 } else { WITH_LENGTH };
        let fin = if self.fin { FIN } else { 0 };
        emit_numbers(DATA + length + fin, &[self.stream, self.from], out);
        if !last {
            varint::emit(self.len as u64, out);
        }
    }

    /// How much of `available` bytes of a stream from position `from` on fits into `room` bytes of a segment; `None`
    /// if nothing does. Of no bytes (the end of a stream) the header must fit.
    ///
    /// Data that does not fill the room has its length with it, if there is room for that, and other parts may follow.
    #[must_use]
    pub fn fit(stream: StreamId, from: u64, available: usize, room: usize) -> Option<Fit> {
        let whole = Self::of(stream, from, available, false);
        let most = room.checked_sub(whole.header_len(true))?;
        let len = available.min(most);
        let last = whole.part_len(false) > room;
        (len > 0 || available == 0).then_some(Fit { len, last })
    }
}

/// The parts of a segment. After the first error there are no more.
#[derive(Clone, Debug)]
pub struct Parts<'a> {
    reader: Reader<'a>,
}

impl<'a> Parts<'a> {
    /// Of the segment with these parts.
    #[must_use]
    pub fn new(parts: &'a [u8]) -> Self {
        let reader = Reader::new(parts);
        Self { reader }
    }

    fn parse(&mut self) -> Result<Part<'a>, FrameError> {
        let reader = &mut self.reader;
        Ok(match reader.u8()? {
            OPEN => Part::Open {
                stream: reader.varint()?,
                class: parse_class(reader)?,
                greeting: reader.counted("greeting", GREETING_MAX)?,
            },
            kind @ DATA..=DATA_LAST => parse_data(kind - DATA, reader)?,
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
    // No stream has bytes beyond the last position that can be said.
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
