//! Protocols above IP, by number and by name.

use std::{fmt, str::FromStr};

/// A protocol above IP (IANA's protocol numbers).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Protocol(pub u8);

/// Names of protocols by number; the first name of a number is printed.
const NAMES: [(&str, u8); 14] = [
    ("icmp", 1),
    ("igmp", 2),
    ("ipip", 4),
    ("tcp", 6),
    ("udp", 17),
    ("dccp", 33),
    ("ipv6", 41),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("icmpv6", 58),
    ("ipv6-icmp", 58),
    ("sctp", 132),
    ("udplite", 136),
];

impl Protocol {
    /// ICMP of IPv4.
    pub const ICMP: Self = Self(1);
    /// TCP.
    pub const TCP: Self = Self(6);
    /// UDP.
    pub const UDP: Self = Self(17);
    /// ICMP of IPv6.
    pub const ICMPV6: Self = Self(58);

    /// Reports whether its packets start with a source and a destination port.
    pub const fn has_ports(self) -> bool {
        matches!(self.0, 6 | 17 | 33 | 132 | 136)
    }

    /// Reports whether packets of this IP version carry it.
    pub(super) fn is_of(self, v4: bool) -> bool {
        match self {
            Self::ICMP => v4,
            Self::ICMPV6 => !v4,
            _ => true,
        }
    }

    /// All names, for messages.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, _)| *name)
    }
}

/// Error for a text that is no such name or number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a protocol")]
pub struct ProtocolError(String);

impl FromStr for Protocol {
    type Err = ProtocolError;

    /// Parses a name, in any case, or a number from 0 to 255.
    fn from_str(text: &str) -> Result<Self, ProtocolError> {
        let named = |(name, _): &&(&str, u8)| name.eq_ignore_ascii_case(text);
        let found = NAMES.iter().find(named).map(|(_, number)| *number);
        let number = found.or_else(|| text.parse().ok());
        number
            .map(Self)
            .ok_or_else(|| ProtocolError(text.to_owned()))
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(_, number)| *number == self.0) {
            Some((name, _)) => f.write_str(name),
            None => self.0.fmt(f),
        }
    }
}
