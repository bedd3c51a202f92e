//! Readers of single values; each describes the values that it accepts.

use std::{
    fmt::Display, marker::PhantomData, ops::RangeInclusive, path::PathBuf, str::FromStr,
    time::Duration,
};

use toml::de::DeValue;
use units::{ByteSize, Rate, Ratio, duration};

use super::raw::closest;

/// Turns a TOML value into a checked one.
pub(crate) trait Reading {
    /// Type of the result.
    type Value;

    /// Accepted values, to follow "expected".
    fn expected(&self) -> String;

    /// Returns the value, or the error and the accepted values.
    fn read(&self, value: &DeValue<'_>) -> Result<Self::Value, String>;

    /// The message for a value of the wrong type.
    fn wrong_type(&self, value: &DeValue<'_>) -> String {
        format!("expected {}, found {}", self.expected(), kind(value))
    }

    /// The text of a value that has to be text.
    fn text_of<'v>(&self, value: &'v DeValue<'_>) -> Result<&'v str, String> {
        value.as_str().ok_or_else(|| self.wrong_type(value))
    }
}

/// Type of a value, with its article.
pub(crate) fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

fn out_of_range(found: impl Display, accepted: impl Display) -> String {
    format!("{found} is out of range; accepted: {accepted}")
}

pub(crate) fn integer_of(value: &DeValue<'_>) -> Option<i128> {
    let integer = value.as_integer()?;
    i128::from_str_radix(integer.as_str(), integer.radix()).ok()
}

/// The text of a quantity: a string, or a bare number in its base unit.
fn quantity_of(value: &DeValue<'_>) -> Option<String> {
    let text = value.as_str().map(str::to_owned);
    text.or_else(|| integer_of(value).map(|number| number.to_string()))
        .or_else(|| value.as_float().map(|number| number.as_str().to_owned()))
}

/// `true` or `false`.
pub(crate) struct Switch;

impl Reading for Switch {
    type Value = bool;

    fn expected(&self) -> String {
        "true or false".to_owned()
    }

    fn read(&self, value: &DeValue<'_>) -> Result<bool, String> {
        value.as_bool().ok_or_else(|| self.wrong_type(value))
    }
}

/// An integer in a range.
pub(crate) struct Integer(pub(crate) RangeInclusive<u32>);

impl Reading for Integer {
    type Value = u32;

    fn expected(&self) -> String {
        format!("an integer from {} to {}", self.0.start(), self.0.end())
    }

    fn read(&self, value: &DeValue<'_>) -> Result<u32, String> {
        let number = integer_of(value).ok_or_else(|| self.wrong_type(value))?;
        let in_range = u32::try_from(number)
            .ok()
            .filter(|number| self.0.contains(number));
        in_range
            .ok_or_else(|| out_of_range(number, format!("{} to {}", self.0.start(), self.0.end())))
    }
}

/// A [`u16`] in a range, for ports and segment sizes.
pub(crate) fn short(range: RangeInclusive<u16>) -> impl Reading<Value = u16> {
    let wide = Integer(u32::from(*range.start())..=u32::from(*range.end()));
    Map(wide, |number| {
        u16::try_from(number).expect("within a range of u16")
    })
}

/// A [`u8`] in a range.
pub(crate) fn byte(range: RangeInclusive<u8>) -> impl Reading<Value = u8> {
    let wide = Integer(u32::from(*range.start())..=u32::from(*range.end()));
    Map(wide, |number| {
        u8::try_from(number).expect("within a range of u8")
    })
}

/// A number in a range, with or without a fraction.
pub(crate) struct Number(pub(crate) RangeInclusive<f64>);

impl Reading for Number {
    type Value = f64;

    fn expected(&self) -> String {
        format!("a number from {} to {}", self.0.start(), self.0.end())
    }

    fn read(&self, value: &DeValue<'_>) -> Result<f64, String> {
        let text = quantity_of(value).filter(|_| value.as_str().is_none());
        let text = text.ok_or_else(|| self.wrong_type(value))?.replace('_', "");
        let number = text.parse().ok().filter(|number| self.0.contains(number));
        number.ok_or_else(|| out_of_range(text, format!("{} to {}", self.0.start(), self.0.end())))
    }
}

/// A constant share, 0 to 1.
pub(crate) fn share(value: f64) -> Ratio {
    Ratio::new(value).expect("a share between 0 and 1")
}

/// A share in a range.
pub(crate) struct Share(pub(crate) RangeInclusive<Ratio>);

impl Reading for Share {
    type Value = Ratio;

    fn expected(&self) -> String {
        let (from, to) = (self.0.start(), self.0.end());
        format!("a share from \"{from}\" to \"{to}\"")
    }

    fn read(&self, value: &DeValue<'_>) -> Result<Ratio, String> {
        let text = quantity_of(value).ok_or_else(|| self.wrong_type(value))?;
        let range = format!("\"{}\" to \"{}\"", self.0.start(), self.0.end());
        let share: Ratio = text
            .parse()
            .map_err(|error| format!("{error}; accepted: {range}"))?;
        if !self.0.contains(&share) {
            return Err(out_of_range(share, range));
        }
        Ok(share)
    }
}

/// Text that parses as a type whose error names the accepted values.
pub(crate) struct Text<T>(&'static str, PhantomData<T>);

/// A [`Text`]; `expected` describes it.
pub(crate) fn text<T>(expected: &'static str) -> Text<T> {
    Text(expected, PhantomData)
}

impl<T: FromStr<Err: Display>> Reading for Text<T> {
    type Value = T;

    fn expected(&self) -> String {
        self.0.to_owned()
    }

    fn read(&self, value: &DeValue<'_>) -> Result<T, String> {
        self.text_of(value)?
            .parse()
            .map_err(|error: T::Err| error.to_string())
    }
}

/// Text that is not blank.
pub(crate) struct NonEmpty(pub(crate) &'static str);

impl Reading for NonEmpty {
    type Value = String;

    fn expected(&self) -> String {
        self.0.to_owned()
    }

    fn read(&self, value: &DeValue<'_>) -> Result<String, String> {
        let text = self.text_of(value)?;
        if text.trim().is_empty() {
            return Err(format!("empty; expected {}", self.0));
        }
        Ok(text.to_owned())
    }
}

/// Path of a file or directory.
pub(crate) fn path(expected: &'static str) -> impl Reading<Value = PathBuf> {
    Map(NonEmpty(expected), PathBuf::from)
}

/// One of a few words.
pub(crate) struct OneOf<T: 'static>(pub(crate) &'static [(&'static str, T)]);

impl<T: Copy> Reading for OneOf<T> {
    type Value = T;

    fn expected(&self) -> String {
        let words: Vec<_> = self
            .0
            .iter()
            .map(|(word, _)| format!("\"{word}\""))
            .collect();
        match words.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
            _ => words.concat(),
        }
    }

    fn read(&self, value: &DeValue<'_>) -> Result<T, String> {
        let text = self.text_of(value)?;
        let found = self.0.iter().find(|(word, _)| *word == text);
        found.map(|(_, meaning)| *meaning).ok_or_else(|| {
            let meant = closest(text, self.0.iter().map(|(word, _)| *word));
            let hint = meant.map(|word| format!(" (did you mean \"{word}\"?)"));
            format!(
                "\"{text}\" is not known{}; accepted: {}",
                hint.unwrap_or_default(),
                self.expected()
            )
        })
    }
}

/// A word with a special meaning, else another reading.
pub(crate) struct WordOr<T, R>(pub(crate) &'static str, pub(crate) T, pub(crate) R);

impl<T: Copy, R: Reading<Value = T>> Reading for WordOr<T, R> {
    type Value = T;

    fn expected(&self) -> String {
        format!("\"{}\" or {}", self.0, self.2.expected())
    }

    fn read(&self, value: &DeValue<'_>) -> Result<T, String> {
        if value.as_str() == Some(self.0) {
            return Ok(self.1);
        }
        self.2
            .read(value)
            .map_err(|error| format!("{error}; \"{}\" is accepted too", self.0))
    }
}

/// Another reading with a converted result.
pub(crate) struct Map<R, F>(pub(crate) R, pub(crate) F);

impl<R: Reading, U, F: Fn(R::Value) -> U> Reading for Map<R, F> {
    type Value = U;

    fn expected(&self) -> String {
        self.0.expected()
    }

    fn read(&self, value: &DeValue<'_>) -> Result<U, String> {
        self.0.read(value).map(&self.1)
    }
}

/// Another reading, of a key that may have no value.
pub(crate) fn some<R: Reading>(reading: R) -> impl Reading<Value = Option<R::Value>> {
    Map(reading, Some)
}

/// A duration in a range.
pub(crate) struct Span(pub(crate) RangeInclusive<Duration>);

impl Span {
    fn range(&self) -> String {
        let (from, to) = (self.0.start(), self.0.end());
        format!(
            "\"{}\" to \"{}\"",
            duration::format(*from),
            duration::format(*to)
        )
    }
}

impl Reading for Span {
    type Value = Duration;

    fn expected(&self) -> String {
        format!("a duration from {}", self.range())
    }

    fn read(&self, value: &DeValue<'_>) -> Result<Duration, String> {
        let text = quantity_of(value).ok_or_else(|| self.wrong_type(value))?;
        let span = duration::parse(&text)
            .map_err(|error| format!("{error}; accepted: {}", self.range()))?;
        if !self.0.contains(&span) {
            return Err(out_of_range(duration::format(span), self.range()));
        }
        Ok(span)
    }
}

/// A duration of whole seconds in a range.
pub(crate) struct Seconds(pub(crate) RangeInclusive<u64>);

impl Reading for Seconds {
    type Value = Duration;

    fn expected(&self) -> String {
        let (from, to) = (self.0.start(), self.0.end());
        format!("a duration of whole seconds from \"{from}s\" to \"{to}s\"")
    }

    fn read(&self, value: &DeValue<'_>) -> Result<Duration, String> {
        let (from, to) = (*self.0.start(), *self.0.end());
        let span = Span(Duration::from_secs(from)..=Duration::from_secs(to)).read(value)?;
        if span.subsec_nanos() != 0 {
            let found = duration::format(span);
            return Err(format!(
                "{found} is not a whole number of seconds; expected {}",
                self.expected()
            ));
        }
        Ok(span)
    }
}

/// A size in a range.
pub(crate) struct Size(pub(crate) RangeInclusive<ByteSize>);

impl Size {
    fn range(&self) -> String {
        format!("\"{}\" to \"{}\"", self.0.start(), self.0.end())
    }
}

impl Reading for Size {
    type Value = ByteSize;

    fn expected(&self) -> String {
        format!("a size from {}", self.range())
    }

    fn read(&self, value: &DeValue<'_>) -> Result<ByteSize, String> {
        let text = quantity_of(value).ok_or_else(|| self.wrong_type(value))?;
        let size: ByteSize = text
            .parse()
            .map_err(|error| format!("{error}; accepted: {}", self.range()))?;
        if !self.0.contains(&size) {
            return Err(out_of_range(size, self.range()));
        }
        Ok(size)
    }
}

/// A size that is a power of two, in a range.
pub(crate) struct PowerOfTwo(pub(crate) RangeInclusive<ByteSize>);

impl Reading for PowerOfTwo {
    type Value = ByteSize;

    fn expected(&self) -> String {
        let (from, to) = (self.0.start(), self.0.end());
        format!("a power of two from \"{from}\" to \"{to}\"")
    }

    fn read(&self, value: &DeValue<'_>) -> Result<ByteSize, String> {
        let size = Size(self.0.clone()).read(value)?;
        if !size.bytes().is_power_of_two() {
            return Err(format!(
                "{size} is not a power of two; expected {}",
                self.expected()
            ));
        }
        Ok(size)
    }
}

/// A data rate.
pub(crate) struct BitRate;

impl Reading for BitRate {
    type Value = Rate;

    fn expected(&self) -> String {
        "a rate such as \"10Mbit/s\"".to_owned()
    }

    fn read(&self, value: &DeValue<'_>) -> Result<Rate, String> {
        let text = quantity_of(value).ok_or_else(|| self.wrong_type(value))?;
        let rate: Rate = text
            .parse()
            .map_err(|error: units::UnitError| error.to_string())?;
        let is_bare = !text.contains(|c: char| c.is_ascii_alphabetic());
        if is_bare && rate.bits_per_second() < BARE_RATE_MIN {
            let number = text.trim();
            return Err(format!(
                "{number} without a unit is {rate}; expected \"{number}Mbit/s\" or the like, or \"{rate}\" where that is meant"
            ));
        }
        Ok(rate)
    }
}

/// Numbers below this, in bit/s, need a unit: they were probably meant in another one.
const BARE_RATE_MIN: u64 = 1000;
