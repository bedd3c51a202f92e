use std::{fmt, str::FromStr};

use crate::{UnitError, number, serde_as_text};

const EXPECTED: &str = "a rate such as \"10Mbit/s\", \"500kbit\" or \"9600\" (bit/s)";

/// A data rate in bit/s, never 0, so that division is safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u64);

impl Rate {
    /// Returns a rate in bit/s; `None` for zero.
    pub const fn from_bits_per_second(bits: u64) -> Option<Self> {
        if bits == 0 { None } else { Some(Self(bits)) }
    }

    /// Returns bits per second, never 0.
    pub const fn bits_per_second(self) -> u64 {
        self.0
    }

    /// Returns bytes per second, rounded down.
    pub const fn bytes_per_second(self) -> u64 {
        self.0 / 8
    }

    /// Returns the bandwidth-delay product in bytes for a round-trip time, rounded up.
    ///
    /// Saturates at `u64::MAX`.
    pub fn bandwidth_delay_product(self, rtt: std::time::Duration) -> u64 {
        let bits_ns = u128::from(self.0) * rtt.as_nanos();
        u64::try_from(bits_ns.div_ceil(8_000_000_000)).unwrap_or(u64::MAX)
    }
}

impl FromStr for Rate {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        if let Some(rate) = in_bytes(text) {
            return Err(UnitError::in_bytes(text, rate));
        }
        let parse = || {
            let (value, suffix) = number::split(text)?;
            let unit = per_second(&suffix);
            let prefix = unit
                .strip_suffix("bit")
                .or(unit.strip_suffix('b'))
                .unwrap_or(unit);
            Some(value * number::prefix(prefix)?)
        };
        let unlike = || UnitError::new(text, EXPECTED);
        let bits = parse().ok_or_else(unlike)?;
        let bits = number::to_u64(bits).ok_or_else(|| UnitError::too_large(text))?;
        Self::from_bits_per_second(bits).ok_or_else(unlike)
    }
}

/// Strips `/s` or `ps` from a unit.
fn per_second(suffix: &str) -> &str {
    let unit = ["/s", "/S", "ps", "pS", "Ps", "PS"];
    let unit = unit.iter().find_map(|end| suffix.strip_suffix(end));
    unit.unwrap_or(suffix)
}

/// Returns the rate that a text in bytes denotes; `None` for any other.
///
/// A capital `B` is a byte, as in `20MB/s`; so are `byte` and `bytes` in any case. `b` is a bit, as
/// in `20mbps`, and so is `bit` in any case.
fn in_bytes(text: &str) -> Option<Rate> {
    let (value, suffix) = number::split_as_written(text)?;
    let unit = per_second(suffix);
    let lower = unit.to_ascii_lowercase();
    let word = lower.strip_suffix("bytes").or(lower.strip_suffix("byte"));
    let letter = || unit.strip_suffix('B').map(str::to_ascii_lowercase);
    let prefix = word.map(str::to_owned).or_else(letter)?;
    let bits = value * number::prefix(&prefix)? * 8.0;
    let bits = number::to_u64(bits).unwrap_or(u64::MAX);
    Rate::from_bits_per_second(bits)
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        number::with_prefix(f, self.0, "bit/s")
    }
}

serde_as_text!(Rate, EXPECTED);
