//! Contact plans: times when a link is up, from a file.
//!
//! All programs of this project share this format. Each line is a span of time:
//!
//! - `from,to` in seconds, in ascending order without overlap; or
//! - `a contact FROM TO NODE NODE RATE` of an ION contact plan (`ionrc(5)`): times are `+SECONDS`,
//!   or `yyyy/mm/dd-hh:mm:ss` (UTC). Overlapping contacts are joined, since directions and nodes
//!   count for one link. Rates are ignored, and so are other `a` lines.
//!
//! `@ yyyy/mm/dd-hh:mm:ss` sets the reference time of seconds on later lines; without it the caller
//! chooses one. `#` begins a comment, and a header line is skipped.

use std::ops::Range;

/// Nanoseconds.
type Nanos = u64;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// The reason why a plan is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The plan has no contacts.
    #[error("it is empty; {expected}")]
    Empty {
        /// The expected content.
        expected: &'static str,
    },
    /// A line is invalid.
    #[error("line {line}: `{text}`: {expected}")]
    Line {
        /// Line number, counted from 1.
        line: usize,
        /// The line as found.
        text: String,
        /// The expected form.
        expected: &'static str,
    },
}

const SPANS_EXPECTED: &str = "expected `from,to` in seconds, in order and apart";
const CONTACT_EXPECTED: &str = "expected `a contact +FROM +TO NODE NODE RATE`, times in seconds or \
                                yyyy/mm/dd-hh:mm:ss";
const REFERENCE_EXPECTED: &str =
    "expected `@ yyyy/mm/dd-hh:mm:ss` (UTC, from 1970 to 2500), before all spans in seconds";
const MIXED_EXPECTED: &str = "expected seconds after a line `@ yyyy/mm/dd-hh:mm:ss` that sets their reference time, or no dates at all";

/// Spans of time: sorted, not empty, with gaps between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    spans: Vec<(Nanos, Nanos)>,
    reference: Option<Nanos>,
}

impl Plan {
    /// Parses a plan.
    ///
    /// # Errors
    /// With the first line of neither form.
    pub fn parse(text: &str) -> Result<Self, PlanError> {
        let mut reader = Reader::default();
        for (number, line) in lines(text) {
            reader.read(line).map_err(|expected| PlanError::Line {
                line: number,
                text: line.to_owned(),
                expected,
            })?;
        }
        if reader.spans.is_empty() {
            let expected = SPANS_EXPECTED;
            return Err(PlanError::Empty { expected });
        }
        Ok(Self {
            spans: joined(reader.spans),
            reference: reader.reference,
        })
    }

    /// Returns the reference time of [`spans`](Self::spans) in nanoseconds of Unix time, if the
    /// plan has one.
    pub fn reference(&self) -> Option<u64> {
        self.reference
    }

    /// Returns the spans in nanoseconds since the reference, or since a time that the caller
    /// chooses if the plan has none. Times before the reference are left out.
    pub fn spans(&self) -> impl Iterator<Item = Range<u64>> {
        let reference = self.reference.unwrap_or(0);
        let spans = self.spans.iter();
        let spans = spans
            .map(move |(from, to)| from.saturating_sub(reference)..to.saturating_sub(reference));
        spans.filter(|span| !span.is_empty())
    }
}

/// State of the parser.
#[derive(Debug, Default)]
struct Reader {
    /// Spans, in Unix time if there is a reference, else relative to the caller's.
    spans: Vec<(Nanos, Nanos)>,
    /// The first `@`, or 1970 for a plan with dates only.
    reference: Option<Nanos>,
    /// The last `@`.
    base: Option<Nanos>,
    /// True if the plan has times relative to the caller's reference.
    relative: bool,
}

impl Reader {
    fn read(&mut self, line: &str) -> Result<(), &'static str> {
        if let Some(text) = line.strip_prefix('@') {
            let base = date(text.trim()).filter(|_| !self.relative);
            self.base = Some(base.ok_or(REFERENCE_EXPECTED)?);
            self.reference = self.reference.or(self.base);
        } else if !line.starts_with("a ") {
            let (from, to) = plain(line).ok_or(SPANS_EXPECTED)?;
            let span = (self.relative(from)?, self.relative(to)?);
            if self.spans.last().is_some_and(|last| last.1 > span.0) {
                return Err(SPANS_EXPECTED);
            }
            self.spans.push(span);
        } else if line.starts_with("a contact") {
            let mut words = line.split_whitespace().skip(2);
            let mut time = || self.time(words.next().ok_or(CONTACT_EXPECTED)?);
            let span = (time()?, time()?);
            let span = (span.0 < span.1).then_some(span);
            self.spans.push(span.ok_or(CONTACT_EXPECTED)?);
        }
        Ok(())
    }

    /// Parses a time of a contact.
    fn time(&mut self, word: &str) -> Result<Nanos, &'static str> {
        if let Some(text) = word.strip_prefix('+') {
            return self.relative(seconds(text).ok_or(CONTACT_EXPECTED)?);
        }
        let at = date(word).ok_or(CONTACT_EXPECTED)?;
        if self.relative {
            return Err(MIXED_EXPECTED);
        }
        self.reference.get_or_insert(0);
        Ok(at)
    }

    fn relative(&mut self, time: Nanos) -> Result<Nanos, &'static str> {
        if self.base.is_none() && self.reference.is_some() {
            return Err(MIXED_EXPECTED);
        }
        self.relative |= self.base.is_none();
        let time = self.base.unwrap_or(0).checked_add(time);
        time.ok_or(SPANS_EXPECTED)
    }
}

fn plain(line: &str) -> Option<(Nanos, Nanos)> {
    let (from, to) = line.split_once(',')?;
    let span = (seconds(from)?, seconds(to)?);
    (span.0 < span.1).then_some(span)
}

/// Returns the significant lines with their numbers: without comments, blank lines and the header.
pub fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().map(|(i, line)| (i + 1, line));
    let lines = lines.map(|(i, line)| (i, line.split('#').next().unwrap_or_default().trim()));
    lines.filter(|(i, line)| {
        let header = *i == 1 && line.starts_with(|c: char| c.is_ascii_alphabetic());
        !line.is_empty() && (!header || line.starts_with("a "))
    })
}

/// Parses decimal seconds to nanoseconds, exactly.
pub fn seconds(text: &str) -> Option<u64> {
    let (whole, fraction) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if fraction.len() > 9 || !digits(whole) || !digits(fraction) || whole.is_empty() {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let fraction: u64 = format!("{fraction:0<9}").parse().ok()?;
    whole.checked_mul(NANOS_PER_SECOND)?.checked_add(fraction)
}

/// Sorts spans and joins those that touch.
pub fn joined(mut spans: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    spans.sort_unstable();
    let mut result: Vec<(u64, u64)> = Vec::with_capacity(spans.len());
    for (from, to) in spans {
        match result.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => result.push((from, to)),
        }
    }
    result
}

/// Parses `yyyy/mm/dd-hh:mm:ss` in UTC, from 1970 to 2500, to nanoseconds of Unix time.
fn date(text: &str) -> Option<Nanos> {
    let (day, time) = text.split_once('-')?;
    let [year, month, day] = numbers(day, '/')?;
    let [hour, minute, second] = numbers(time, ':')?;
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let length = match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    let valid = (1970..=2500).contains(&year) && (1..=length).contains(&day);
    if !valid || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let seconds = days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    seconds.checked_mul(NANOS_PER_SECOND)
}

/// Returns the days from the beginning of 1970 to a Gregorian date. Years start in March, so that
/// the leap day is the last one.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    /// Days from 1 March of year 0 to the beginning of 1970.
    const TO_1970: u64 = 719_468;
    let leaps = year / 4 - year / 100 + year / 400;
    365 * year + leaps + (153 * month + 2) / 5 + (day - 1) - TO_1970
}

fn numbers(text: &str, separator: char) -> Option<[u64; 3]> {
    let mut parts = text.split(separator);
    let mut next = || {
        let part = parts.next()?;
        let digits = (1..=4).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| part.parse().ok())?
    };
    let numbers = [next()?, next()?, next()?];
    parts.next().is_none().then_some(numbers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = NANOS_PER_SECOND;

    fn spans(text: &str) -> Result<Vec<(u64, u64)>, PlanError> {
        let plan = Plan::parse(text)?;
        Ok(plan.spans().map(|span| (span.start, span.end)).collect())
    }

    #[test]
    fn contacts_of_ion_and_plain_spans_are_read() {
        let ion = "# ION\na range +0 +3600 1 2 1\na contact +10 +20 1 2 100000\n\
                   a contact +15 +30 2 1 100000 0.9\na contact +50 +60.5 1 2 1\n";
        let expected = [(10 * SECOND, 30 * SECOND), (50 * SECOND, 60_500_000_000)];
        assert_eq!(spans(ion).unwrap(), expected);
        assert_eq!(Plan::parse(ion).unwrap().reference(), None);
        assert_eq!(spans("from,to\n1,2\n2.5,3\n").unwrap()[1].0, 2_500_000_000);
    }

    #[test]
    fn dates_say_from_when_seconds_count() {
        let plan = "@ 2026/11/22-13:00:00\na contact +10 +20 1 2 1\n\
                    a contact 2026/11/22-14:00:00 2026/11/22-14:10:00 1 2 1\n";
        // date -u -d '2026-11-22 13:00:00' +%s
        assert_eq!(
            Plan::parse(plan).unwrap().reference(),
            Some(1_795_352_400 * SECOND)
        );
        let expected = [(10 * SECOND, 20 * SECOND), (3600 * SECOND, 4200 * SECOND)];
        assert_eq!(spans(plan).unwrap(), expected);
        let dates = "a contact 1970/01/02-00:00:01 1970/01/02-00:00:02 1 2 1";
        assert_eq!(spans(dates).unwrap(), [(86_401 * SECOND, 86_402 * SECOND)]);
        assert_eq!(date("2000/02/29-00:00:00"), Some(951_782_400 * SECOND));
    }

    #[test]
    fn errors_name_the_line_and_what_is_expected() {
        for (text, line, part) in [
            ("1,2\n2,x", 2, "`from,to`"),
            ("1,3\n2,4", 2, "in order"),
            ("2,2", 1, "`from,to`"),
            ("a contact +5 +4 1 2 1", 1, "a contact"),
            ("a contact 2026/13/01-00:00:00 +4 1 2 1", 1, "a contact"),
            ("@ 2026/02/29-00:00:00\n1,2", 1, "UTC"),
            ("1,2\n@ 2026/02/28-00:00:00", 2, "before all spans"),
            (
                "1,2\na contact 2026/01/01-00:00:00 2026/01/02-00:00:00 1 2 1",
                2,
                "no dates",
            ),
            (
                "a contact 2026/01/01-00:00:00 2026/01/02-00:00:00 1 2 1\na contact +1 +2 1 2 1",
                2,
                "no dates",
            ),
        ] {
            let err = spans(text).unwrap_err();
            let PlanError::Line {
                line: found,
                expected,
                ..
            } = &err
            else {
                panic!("{text}: {err}")
            };
            assert!(*found == line && expected.contains(part), "{text}: {err}");
        }
        assert!(matches!(spans("# nothing\n"), Err(PlanError::Empty { .. })));
    }

    proptest! {
        /// Compares with a count of days one by one.
        #[test]
        fn days_are_those_of_the_calendar(count in 0..193_000u64) {
            let (mut year, mut month, mut day) = (1970, 1, 1);
            let is_leap = |year: u64| year.is_multiple_of(400) || year.is_multiple_of(4) && !year.is_multiple_of(100);
            for _ in 0..count {
                let lengths = [31, if is_leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
                day += 1;
                if day > lengths[month - 1] {
                    (day, month) = (1, month + 1);
                }
                if month > 12 {
                    (month, year) = (1, year + 1);
                }
            }
            prop_assert_eq!(days(year, month as u64, day), count);
        }

        #[test]
        fn no_text_is_read_wrongly_or_panics(text in "[@a contact0-9+,./:\n#-]{0,60}") {
            if let Ok(plan) = Plan::parse(&text) {
                let spans: Vec<_> = plan.spans().collect();
                prop_assert!(spans.iter().all(|span| span.start < span.end), "{spans:?}");
                prop_assert!(spans.windows(2).all(|pair| pair[0].end < pair[1].start), "{spans:?}");
            }
        }
    }
}
