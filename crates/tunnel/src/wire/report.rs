//! Receiver reports.
//!
//! ```text
//! REPORT = 0x01 flags:8 [highest] packets bytes [marked] below [from] [extent]
//!          lost-of lost bursts n n*range m m*gap
//! highest = number arrived_us held_us                  if flags has 0x01
//! marked                                               if flags has 0x02, else 0
//! from    = first segment spoken of                    if flags has 0x04, else 0
//! extent  = how many of them                           if flags has 0x08, else no end
//! range   = skipped length                             length (1 or more), less 1
//! gap     = before missing before_us after_us          missing (1 or more), less 1
//! ```
//!
//! `skipped` counts the segments since the previous range, less 1; for the first range, those from
//! `below` on. `before` and `before_us` of a gap are differences to those of the previous gap, or
//! to `highest` (0 if absent) for the first. `after_us` is a difference to `before_us`. These three
//! fields are signed and zigzag-encoded: 0, -1, 1, -2, 2 are written as 0, 1, 2, 3, 4.

use std::ops::Range;

use super::{
    FrameError,
    frame::parse_later,
    varint::{self, Reader, fold, in_range, sum, unfold},
};

/// Maximum number of ranges in a report.
pub const RANGES_MAX: usize = 64;
/// Maximum number of gaps in a report.
pub const GAPS_MAX: usize = 16;
/// Maximum length of the frame without ranges and gaps: type, flags, twelve numbers, two counts.
pub const REPORT_LEN_BARE: usize = 2 + 12 * 8 + 2;

const HIGHEST: u8 = 0x01;
const MARKED: u8 = 0x02;
const FROM: u8 = 0x04;
const UNTIL: u8 = 0x08;
/// A length and fields of later versions follow.
const LATER: u8 = 0x80;
const FLAGS: u8 = HIGHEST | MARKED | FROM | UNTIL | LATER;

/// Complete state of the receiver: any single report is enough to act on.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Report {
    /// Highest packet number that has arrived, if any; its arrival time by the receiver's clock;
    /// and its age when the report was sent.
    pub highest: Option<Highest>,
    /// Packets that have arrived since the session began, without duplicates.
    pub packets: u64,
    /// Bytes of datagrams that have arrived since the session began, without duplicates.
    pub bytes: u64,
    /// Packets marked with congestion experienced (RFC 3168).
    pub marked: u64,
    /// All segments below this number have arrived.
    pub below: u64,
    /// Segments that `ranges` covers. Segments outside are unspecified, except those below `below`.
    pub span: Span,
    /// Segments at or above `below` that have arrived, in rising order, disjoint, not touching; at
    /// most [`RANGES_MAX`].
    pub ranges: Vec<Range<u64>>,
    /// Runs of missing packet numbers between two arrivals: the newest ones, oldest first; at most
    /// [`GAPS_MAX`]. Each appears in two reports or more, so the sender must deduplicate them by
    /// number. Their order is not checked.
    pub gaps: Vec<Gap>,
    /// Counts since the session began, for FEC rate control ([`fec::control::Counts`]): packet
    /// numbers examined, lost packets, and loss bursts. Silences are excluded.
    pub counts: [u64; 3],
}

/// Highest packet number of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Highest {
    /// Packet number.
    pub number: u64,
    /// Arrival time, in microseconds of the receiver's clock.
    pub arrived_us: u64,
    /// Time between arrival and report, in microseconds.
    pub held_us: u64,
}

/// Segments that a report covers: at or above `from` and below `until`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First segment.
    pub from: u64,
    /// Segment after the last one; the maximum means no end.
    pub until: u64,
}

impl Default for Span {
    fn default() -> Self {
        Self {
            from: 0,
            until: u64::MAX,
        }
    }
}

/// Packet numbers that did not arrive, between two that did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Number that arrived before the gap; the first missing one is the next.
    pub before: u64,
    /// Number of missing packets.
    pub missing: u64,
    /// Arrival time of `before`, in microseconds of the receiver's clock.
    pub before_us: u64,
    /// Arrival time of the packet after the gap, in microseconds.
    pub after_us: u64,
}

impl Report {
    /// Returns the report's length in bytes, without the frame type.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no report is empty")]
    pub fn len(&self) -> usize {
        let mut len = 1;
        self.numbers(|number| len += varint::len(number.min(varint::MAX)));
        len
    }

    /// Appends the report to a packet, without the frame type.
    ///
    /// Omits the highest ranges and the oldest gaps beyond the maximum, as
    /// [`shorten`](Self::shorten) does.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.push(self.flags());
        self.numbers(|number| varint::emit(number, out));
    }

    /// Omits the oldest gaps, then the highest ranges, until the frame fits into `room` bytes with
    /// its type. The span shrinks to the segments that are still listed. Returns false if the frame
    /// is still too long.
    pub fn shorten(&mut self, room: usize) -> bool {
        while 1 + self.len() > room {
            if !self.gaps.is_empty() {
                self.gaps.remove(0);
            } else if self.ranges.pop().is_some() {
                let end = self.ranges.last().map_or(self.below, |range| range.end);
                self.span.until = self.span.until.min(end);
            } else {
                return false;
            }
        }
        true
    }

    fn flags(&self) -> u8 {
        let flag = |set, flag| if set { flag } else { 0 };
        flag(self.highest.is_some(), HIGHEST)
            | flag(self.marked > 0, MARKED)
            | flag(self.span.from > 0, FROM)
            | flag(self.until() < u64::MAX, UNTIL)
    }

    /// Passes everything that follows the flags to `number`, one number after the other.
    fn numbers(&self, mut number: impl FnMut(u64)) {
        if let Some(highest) = self.highest {
            let numbers = [highest.number, highest.arrived_us, highest.held_us];
            numbers.into_iter().for_each(&mut number);
        }
        number(self.packets);
        number(self.bytes);
        if self.marked > 0 {
            number(self.marked);
        }
        number(self.below);
        if self.span.from > 0 {
            number(self.span.from);
        }
        if self.until() < u64::MAX {
            number(self.until().saturating_sub(self.span.from));
        }
        self.counts.into_iter().for_each(&mut number);
        self.range_numbers(&mut number);
        self.gap_numbers(&mut number);
    }

    fn range_numbers(&self, number: &mut impl FnMut(u64)) {
        let ranges = &self.ranges[..self.ranges.len().min(RANGES_MAX)];
        number(ranges.len() as u64);
        let mut next = self.below;
        for range in ranges {
            number(range.start.saturating_sub(next));
            number((range.end.saturating_sub(range.start)).saturating_sub(1));
            next = range.end.saturating_add(1);
        }
    }

    fn gap_numbers(&self, number: &mut impl FnMut(u64)) {
        let gaps = &self.gaps[self.gaps.len().saturating_sub(GAPS_MAX)..];
        number(gaps.len() as u64);
        let mut anchor = self.highest.unwrap_or(Highest::ZERO).anchor();
        for gap in gaps {
            number(difference(anchor.0, gap.before));
            number(gap.missing.saturating_sub(1));
            number(difference(anchor.1, gap.before_us));
            number(difference(gap.before_us, gap.after_us));
            anchor = (gap.before, gap.before_us);
        }
    }

    /// Returns the end of the span: the last range that is written, if not all fit.
    fn until(&self) -> u64 {
        let ends = self.ranges.len() > RANGES_MAX;
        let last = self.ranges.get(RANGES_MAX - 1).filter(|_| ends);
        last.map_or(self.span.until, |last| self.span.until.min(last.end))
    }

    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        let flags = reader.u8()?;
        in_range("flags", flags & !FLAGS == 0, flags.into())?;
        let has = |flag| flags & flag != 0;
        let highest = has(HIGHEST).then(|| Highest::parse(reader)).transpose()?;
        let (packets, bytes) = (reader.varint()?, reader.varint()?);
        let marked = if has(MARKED) { reader.varint()? } else { 0 };
        let below = reader.varint()?;
        let span = Span::parse(has(FROM), has(UNTIL), reader)?;
        let counts = [reader.varint()?, reader.varint()?, reader.varint()?];
        let ranges = parse_ranges(below, reader)?;
        let gaps = parse_gaps(highest.unwrap_or(Highest::ZERO).anchor(), reader)?;
        if has(LATER) {
            parse_later(reader)?;
        }
        Ok(Self {
            highest,
            packets,
            bytes,
            marked,
            below,
            span,
            ranges,
            gaps,
            counts,
        })
    }
}

impl Highest {
    const ZERO: Self = Self {
        number: 0,
        arrived_us: 0,
        held_us: 0,
    };

    fn parse(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        Ok(Self {
            number: reader.varint()?,
            arrived_us: reader.varint()?,
            held_us: reader.varint()?,
        })
    }

    /// Returns the reference point of the first gap.
    fn anchor(self) -> (u64, u64) {
        (self.number, self.arrived_us)
    }
}

impl Span {
    fn parse(has_from: bool, has_until: bool, reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        let from = if has_from { reader.varint()? } else { 0 };
        let until = if has_until {
            sum("extent", from, reader.varint()?)?
        } else {
            u64::MAX
        };
        Ok(Self { from, until })
    }
}

fn parse_ranges(below: u64, reader: &mut Reader<'_>) -> Result<Vec<Range<u64>>, FrameError> {
    let count = reader.at_most("ranges", RANGES_MAX as u64)?;
    let mut ranges = Vec::with_capacity(claimed(count, 2, reader));
    let mut next = below;
    for _ in 0..count {
        let start = sum("range", next, reader.varint()?)?;
        let end = sum("range", start, reader.varint()? + 1)?;
        ranges.push(start..end);
        next = end + 1;
    }
    Ok(ranges)
}

fn parse_gaps(anchor: (u64, u64), reader: &mut Reader<'_>) -> Result<Vec<Gap>, FrameError> {
    let count = reader.at_most("gaps", GAPS_MAX as u64)?;
    let mut gaps = Vec::with_capacity(claimed(count, 4, reader));
    let (mut number, mut time) = anchor;
    for _ in 0..count {
        let gap = Gap::parse(number, time, reader)?;
        (number, time) = (gap.before, gap.before_us);
        gaps.push(gap);
    }
    Ok(gaps)
}

impl Gap {
    fn parse(number: u64, time: u64, reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        let before = relative("before", number, reader)?;
        let missing = reader.varint()?.saturating_add(1);
        sum("missing", before, missing)?;
        let before_us = relative("before_us", time, reader)?;
        let after_us = relative("after_us", before_us, reader)?;
        Ok(Self {
            before,
            missing,
            before_us,
            after_us,
        })
    }
}

/// Limits a claimed count to the number of items of `len_min` bytes that can follow.
fn claimed(count: u64, len_min: usize, reader: &Reader<'_>) -> usize {
    (count as usize).min(reader.left() / len_min)
}

/// Returns the encoded difference.
fn difference(anchor: u64, value: u64) -> u64 {
    fold(value.wrapping_sub(anchor).cast_signed())
}

/// Reads a value encoded as a difference.
fn relative(field: &'static str, anchor: u64, reader: &mut Reader<'_>) -> Result<u64, FrameError> {
    let difference = unfold(reader.varint()?);
    let value = anchor.wrapping_add_signed(difference);
    in_range(field, value <= varint::MAX, value)?;
    Ok(value)
}
