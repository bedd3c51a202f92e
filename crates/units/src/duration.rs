//! Durations: `264ms`, `1.5s`, `40us`, `2h`, `0`; usable as `#[serde(with = "units::duration")]`.

use std::{fmt::Write as _, str::FromStr, time::Duration};

use serde::{Deserializer, Serializer};

use crate::{UnitError, number};

const EXPECTED: &str = "a duration such as \"264ms\", \"1.5s\", \"40us\", \"2min\" or \"0\"";

/// Units with their length in nanoseconds, longest first; output uses the first name.
const UNITS: [(u64, &[&str]); 7] = [
    (86_400_000_000_000, &["d", "day", "days"]),
    (3_600_000_000_000, &["h", "hour", "hours"]),
    (60_000_000_000, &["min", "m", "minutes"]),
    (1_000_000_000, &["s", "sec", "seconds"]),
    (1_000_000, &["ms"]),
    (1_000, &["us", "µs"]),
    (1, &["ns"]),
];

/// Parses a duration; only zero needs no unit.
///
/// # Errors
/// When the text is no number with a unit of time, is negative, or exceeds 584 years.
pub fn parse(text: &str) -> Result<Duration, UnitError> {
    let parse = || {
        let (value, unit) = number::split(text)?;
        if value == 0.0 && unit.is_empty() {
            return Some(0.0);
        }
        let (ns, _) = UNITS
            .iter()
            .find(|(_, names)| names.contains(&unit.as_str()))?;
        Some(value * *ns as f64)
    };
    let ns = parse().ok_or_else(|| UnitError::new(text, EXPECTED))?;
    let span = number::to_u64(ns).map(Duration::from_nanos);
    span.ok_or_else(|| UnitError::too_large(text))
}

/// Formats a duration; [`parse`] restores it exactly up to 2^53 ns (104 days).
pub fn format(duration: Duration) -> String {
    let ns = duration.as_nanos();
    let mut text = String::new();
    let (factor, names) = UNITS
        .iter()
        .find(|(factor, _)| ns >= u128::from(*factor) && ns.is_multiple_of(u128::from(*factor)))
        .unwrap_or(&(1, &["ns"]));
    write!(text, "{}{}", ns / u128::from(*factor), names[0]).expect("writing to a string");
    if ns == 0 { "0".to_owned() } else { text }
}

/// A duration that parses and displays itself as text, for options and lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        parse(text).map(Self)
    }
}

impl std::fmt::Display for Span {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&format(self.0))
    }
}

crate::serde_as_text!(Span, EXPECTED);

/// Deserializes for `#[serde(with = "units::duration")]`.
///
/// # Errors
/// Those of the deserializer, and [`parse`]'s.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    serde::Deserialize::deserialize(deserializer).map(|Span(duration)| duration)
}

/// Serializes for `#[serde(with = "units::duration")]`.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&Span(*duration))
}
