use std::{fmt, str::FromStr};

use crate::{UnitError, number, serde_as_text};

const EXPECTED: &str = "a share between 0 and 1, such as \"1%\", \"0.01\" or \"1e-6\"";

/// A share or probability, from 0 to 1 inclusive.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct Ratio(f64);

impl Ratio {
    /// Returns the ratio, or `None` outside 0..=1.
    pub fn new(value: f64) -> Option<Self> {
        (0.0..=1.0).contains(&value).then_some(Self(value))
    }

    /// Returns the value, from 0 to 1.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl FromStr for Ratio {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let parse = || match number::split(text)? {
            (value, unit) if unit == "%" => Self::new(value / 100.0),
            (value, unit) if unit.is_empty() => Self::new(value),
            _ => None,
        };
        parse().ok_or_else(|| UnitError::new(text, EXPECTED))
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 != 0.0 && self.0 < 1e-4 {
            write!(f, "{:e}", self.0)
        } else {
            // Nine decimals of a percent exceed the precision of a float of this size.
            let percent = format!("{:.9}", self.0 * 100.0);
            write!(
                f,
                "{}%",
                percent.trim_end_matches('0').trim_end_matches('.')
            )
        }
    }
}

serde_as_text!(Ratio, EXPECTED);
