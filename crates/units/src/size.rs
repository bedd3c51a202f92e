use std::{fmt, str::FromStr};

use crate::{UnitError, number, serde_as_text};

const EXPECTED: &str = "a size such as \"660kB\", \"64KiB\", \"1GiB\" or \"4096\" (bytes)";

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// Returns `n` times 1024 bytes.
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }

    /// Returns `n` times 1,048,576 bytes.
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// Returns the size in bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for ByteSize {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let parse = || {
            let (value, suffix) = number::split(text)?;
            let prefix = suffix.strip_suffix('b').unwrap_or(&suffix);
            Some(value * number::prefix(prefix)?)
        };
        let bytes = parse().ok_or_else(|| UnitError::new(text, EXPECTED))?;
        let bytes = number::to_u64(bytes).map(Self);
        bytes.ok_or_else(|| UnitError::too_large(text))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if self.0 != 0 && self.0.trailing_zeros() >= shift {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        number::with_prefix(f, self.0, "B")
    }
}

serde_as_text!(ByteSize, EXPECTED);
