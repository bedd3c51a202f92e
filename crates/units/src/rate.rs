use std::{fmt, str::FromStr};

use crate::{UnitError, number, serde_as_text};

const EXPECTED: &str = "a rate such as \"10Mbit/s\", \"500kbit\" or \"9600\" (bit/s)";

/// A data rate in bit/s; at least 1, so that it can be divided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u64);

impl Rate {
    /// A rate of so many bit/s; `None` for zero.
    pub const fn from_bits_per_second(bits: u64) -> Option<Self> {
        if bits == 0 { None } else { Some(Self(bits)) }
    }

    /// Bits per second, at least 1.
    pub const fn bits_per_second(self) -> u64 {
        self.0
    }

    /// Bytes per second, rounded down.
    pub const fn bytes_per_second(self) -> u64 {
        self.0 / 8
    }

    /// The bandwidth-delay product in bytes over a path of this round-trip time, rounded up.
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
        let parse = || {
            let (value, suffix) = number::split(text)?;
            let unit = suffix
                .strip_suffix("/s")
                .or(suffix.strip_suffix("ps"))
                .unwrap_or(&suffix);
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

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        number::with_prefix(f, self.0, "bit/s")
    }
}

serde_as_text!(Rate, EXPECTED);
