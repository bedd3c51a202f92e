//! The common part of all quantities: a decimal number, then a suffix.

use std::{fmt, marker::PhantomData, str::FromStr};

use serde::de::{Error, Visitor};

/// Splits `12.5 MB` into `12.5` and `mb` (lower case, no spaces around it).
///
/// Returns `None` without a finite, non-negative number in front.
pub(crate) fn split(text: &str) -> Option<(f64, String)> {
    let (value, suffix) = split_as_written(text)?;
    Some((value, suffix.to_ascii_lowercase()))
}

/// Splits as [`split`] does, and keeps the case of the suffix.
pub(crate) fn split_as_written(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_')
        .unwrap_or(text.len());
    // Error rates have the form `1e-6`; no suffix starts with e and a digit or sign.
    let end = exponent_end(text, end).unwrap_or(end);
    let value: f64 = text[..end].replace('_', "").parse().ok()?;
    value.is_finite().then(|| (value, text[end..].trim()))
}

fn exponent_end(text: &str, end: usize) -> Option<usize> {
    let rest = text[end..].strip_prefix(['e', 'E'])?;
    let digits = rest.strip_prefix(['+', '-']).unwrap_or(rest);
    let n = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    (n > 0).then(|| text.len() - digits.len() + n)
}

/// Returns the factor of a prefix (`""`, `k`, `ki`, `m`, ...), if it is one.
pub(crate) fn prefix(text: &str) -> Option<f64> {
    Some(match text {
        "" => 1.0,
        "k" => 1e3,
        "m" => 1e6,
        "g" => 1e9,
        "t" => 1e12,
        "ki" => 1024.0,
        "mi" => 1024f64.powi(2),
        "gi" => 1024f64.powi(3),
        "ti" => 1024f64.powi(4),
        _ => return None,
    })
}

/// Rounds to a `u64`; returns `None` for values beyond its range.
pub(crate) fn to_u64(value: f64) -> Option<u64> {
    (value >= 0.0 && value < u64::MAX as f64).then(|| value.round() as u64)
}

/// Writes `value` with the largest decimal prefix that keeps it exact to three decimals.
pub(crate) fn with_prefix(f: &mut fmt::Formatter<'_>, value: u64, unit: &str) -> fmt::Result {
    for (factor, prefix) in [(1_000_000_000u64, "G"), (1_000_000, "M"), (1_000, "k")] {
        if value >= factor && value.is_multiple_of(factor / 1000) {
            return write!(f, "{}{prefix}{unit}", value as f64 / factor as f64);
        }
    }
    write!(f, "{value}{unit}")
}

/// Deserializes a quantity from a string, or from a bare number in its base unit.
pub(crate) struct TextVisitor<T> {
    expected: &'static str,
    quantity: PhantomData<T>,
}

impl<T> TextVisitor<T> {
    pub(crate) fn new(expected: &'static str) -> Self {
        Self {
            expected,
            quantity: PhantomData,
        }
    }
}

impl<T: FromStr<Err = crate::UnitError>> Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<T, E> {
        value.to_string().parse().map_err(E::custom)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<T, E> {
        value.to_string().parse().map_err(E::custom)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<T, E> {
        value.to_string().parse().map_err(E::custom)
    }
}
