//! Names that the kernel limits: interfaces, congestion controls, nft tables.

use std::{fmt, str::FromStr};

/// Error for a text that is not such a name; the message describes a valid one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct NameError {
    text: String,
    expected: &'static str,
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $expected:literal, $valid:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                let valid: fn(&str) -> bool = $valid;
                if valid(text) {
                    Ok(Self(text.to_owned()))
                } else {
                    Err(NameError { text: text.to_owned(), expected: $expected })
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
    };
}

name!(
    /// The name of a network interface: 1 to 15 printable ASCII characters other than `/`, `:`,
    /// `"`, `*` and blanks (Linux's `dev_valid_name`, less what nft would not read back).
    IfName,
    "the name of an interface: 1 to 15 characters, without blanks, `/`, `:`, `*` or quotes",
    |text| (1..=15).contains(&text.len())
        && text != "."
        && text != ".."
        && text.bytes().all(|b| b.is_ascii_graphic() && !b"/:*\"'\\".contains(&b))
);

name!(
    /// The name of a congestion control: 1 to 15 letters, digits, `_` or `-` (TCP_CA_NAME_MAX
    /// is 16 with its terminator).
    CongestionName,
    "the name of a congestion control: 1 to 15 letters, digits, `_` or `-`",
    |text| (1..=15).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
);

impl CongestionName {
    /// Reports whether the control sends at the configured rate whatever is lost, and so leaves
    /// nothing to other flows. Only for a dedicated link with a configured rate.
    pub fn takes_the_whole_link(&self) -> bool {
        self.0 == "steady"
    }

    /// Reports whether the control grows as over a reference round trip, `rtt0`.
    pub fn has_rtt0(&self) -> bool {
        matches!(self.as_str(), "hybla" | "hybla_sat")
    }
}

name!(
    /// The name of an nft table: a letter, then up to 31 letters, digits or `_`.
    TableName,
    "the name of an nft table: a letter, then up to 31 letters, digits or `_`",
    |text| (1..=32).contains(&text.len())
        && text.as_bytes()[0].is_ascii_alphabetic()
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
);
