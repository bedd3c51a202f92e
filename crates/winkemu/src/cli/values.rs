//! Options with several values: `40ms,200ms`, `0..0.4/0.05`.

use std::{str::FromStr, time::Duration};

use units::{Ratio, UnitError, duration::Span};

/// Limit of values in a list or range, far more than a reader can use.
const VALUES_MAX: u64 = 10_000;

/// Rejected list of values.
#[derive(Debug, thiserror::Error)]
pub(super) enum ValuesError {
    /// Invalid element.
    #[error(transparent)]
    Value(#[from] UnitError),
    /// Incomplete range.
    #[error("`{text}` is not a range FROM..TO/STEP, such as \"{example}\"")]
    Range { text: String, example: &'static str },
    /// Range without values.
    #[error("`{text}` is empty: FROM..TO/STEP needs STEP above 0 and TO not below FROM")]
    Empty { text: String },
    /// Range or list with too many values.
    #[error("`{text}` has {count} values; the maximum is {VALUES_MAX}")]
    TooMany { text: String, count: u64 },
}

/// Type with steps. Steps are whole numbers, so that sums do not accumulate rounding errors.
pub(super) trait Stepped: FromStr<Err = UnitError> {
    /// Range for error messages.
    const EXAMPLE: &'static str;
    /// Value in the smallest unit of a range.
    fn to_units(&self) -> u64;
    /// Value from a number of units.
    fn from_units(units: u64) -> Self;
}

impl Stepped for Span {
    const EXAMPLE: &'static str = "40ms..1100ms/20ms";

    fn to_units(&self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }

    fn from_units(units: u64) -> Self {
        Self(Duration::from_nanos(units))
    }
}

/// Steps of ratios are counted in billionths.
const BILLION: f64 = 1e9;

impl Stepped for Ratio {
    const EXAMPLE: &'static str = "0..0.4/0.05";

    fn to_units(&self) -> u64 {
        (self.get() * BILLION).round() as u64
    }

    fn from_units(units: u64) -> Self {
        Self::new(units as f64 / BILLION).expect("a value within two ratios")
    }
}

/// One or more values, in the order of the command line.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Values<T>(pub(super) Vec<T>);

impl<T: Stepped> FromStr for Values<T> {
    type Err = ValuesError;

    fn from_str(text: &str) -> Result<Self, ValuesError> {
        let mut values = Vec::new();
        for part in text.split(',') {
            match part.split_once("..") {
                Some((from, rest)) => values.extend(range::<T>(part, from, rest)?),
                None => values.push(part.parse()?),
            }
        }
        Ok(Self(values))
    }
}

fn range<T: Stepped>(
    text: &str,
    from: &str,
    rest: &str,
) -> Result<impl Iterator<Item = T>, ValuesError> {
    let text = text.to_owned();
    let Some((to, step)) = rest.split_once('/') else {
        let example = T::EXAMPLE;
        return Err(ValuesError::Range { text, example });
    };
    let read = |text: &str| Ok::<_, UnitError>(text.parse::<T>()?.to_units());
    let (from, to, step) = (read(from)?, read(to)?, read(step)?);
    if step == 0 || to < from {
        return Err(ValuesError::Empty { text });
    }
    let count = (to - from) / step + 1;
    if count > VALUES_MAX {
        return Err(ValuesError::TooMany { text, count });
    }
    Ok((0..count).map(move |index| T::from_units(from + index * step)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(text: &str) -> Vec<u128> {
        let Values(spans) = text.parse::<Values<Span>>().unwrap();
        spans.iter().map(|Span(time)| time.as_millis()).collect()
    }

    fn ratios(text: &str) -> Vec<f64> {
        let Values(ratios) = text.parse::<Values<Ratio>>().unwrap();
        ratios.into_iter().map(Ratio::get).collect()
    }

    #[test]
    fn values_are_alone_in_lists_and_in_ranges() {
        assert_eq!(spans("40ms"), [40]);
        assert_eq!(spans("1s,40ms"), [1000, 40]);
        assert_eq!(spans("40ms..100ms/20ms,1s"), [40, 60, 80, 100, 1000]);
        assert_eq!(spans("40ms..99ms/20ms"), [40, 60, 80]);
        assert_eq!(spans("40ms..40ms/1s"), [40]);
        assert_eq!(spans("40ms..1100ms/20ms").len(), 54);
        // Values are shortest decimals, without the rounding errors of a sum.
        let expected = [0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4];
        assert_eq!(ratios("0..0.4/0.05"), expected);
        assert_eq!(ratios("10%,0.2"), [0.1, 0.2]);
    }

    #[test]
    fn mistakes_say_what_is_accepted() {
        let error = |text: &str| text.parse::<Values<Span>>().unwrap_err().to_string();
        for (text, expected) in [
            ("40", "such as \"264ms\""),
            ("40ms,", "such as \"264ms\""),
            ("-40ms", "negative"),
            ("40ms..1s", "\"40ms..1100ms/20ms\""),
            ("40ms..1s/fast", "such as \"264ms\""),
            ("1s..40ms/1ms", "TO not below FROM"),
            ("40ms..1s/0", "STEP above 0"),
            ("0..1h/1ns", "3600000000001 values"),
        ] {
            assert!(error(text).contains(expected), "{text}: {}", error(text));
        }
        let error = "0..2/0.1".parse::<Values<Ratio>>().unwrap_err();
        assert!(error.to_string().contains("between 0 and 1"), "{error}");
    }
}
