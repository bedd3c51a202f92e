//! Rates, sizes, durations, ratios and contact plans in human-readable form.
//!
//! This crate parses every configuration key and command line option of this project that has a
//! unit: `10Mbit/s`, `660kB`, `264ms` and `1%` mean the same everywhere. The prefixes `k`, `M`,
//! `G`, `T` are powers of 1000 and `Ki`, `Mi`, `Gi`, `Ti` powers of 1024. Their case does not
//! matter (`10mbit` is ten megabit). The case of a lone `b` matters in a rate: `b` is a bit, and a
//! rate in bytes (`20MB/s`) is refused.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod contacts;
pub mod duration;
mod number;
mod rate;
mod ratio;
mod size;

pub use rate::Rate;
pub use ratio::Ratio;
pub use size::ByteSize;

/// Formats a number with the noun `one`, plural as needed: "1 flow", "2 flows".
pub fn counted(number: u64, one: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {one}{plural}")
}

/// A parse error; the message names the expected form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is {problem}")]
pub struct UnitError {
    text: String,
    problem: Problem,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Problem {
    #[error("not {0}")]
    Unlike(&'static str),
    #[error("negative")]
    Negative,
    #[error("too large")]
    TooLarge,
    #[error("in bytes, and rates are in bits: write \"{0}\"")]
    InBytes(Rate),
}

impl UnitError {
    /// Returns the error for a text that cannot be parsed.
    fn new(text: &str, expected: &'static str) -> Self {
        let positive = text.trim().strip_prefix('-');
        let problem = match positive.and_then(number::split) {
            Some(_) => Problem::Negative,
            None => Problem::Unlike(expected),
        };
        Self {
            text: text.to_owned(),
            problem,
        }
    }

    /// Returns the error for a rate in bytes; `rate` is the same in bits.
    fn in_bytes(text: &str, rate: Rate) -> Self {
        Self {
            text: text.to_owned(),
            problem: Problem::InBytes(rate),
        }
    }

    /// Returns the error for a value beyond the range of the type.
    fn too_large(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            problem: Problem::TooLarge,
        }
    }
}

/// Serde support shared by the quantities: a string with a unit, or a bare number.
macro_rules! serde_as_text {
    ($type:ty, $expected:expr) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(crate::number::TextVisitor::new($expected))
            }
        }
    };
}
use serde_as_text;

#[cfg(test)]
mod tests;
