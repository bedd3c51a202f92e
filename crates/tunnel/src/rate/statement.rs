//! The rate as an operator states it, or not.

/// How fast to send.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// Bits a second that the link carries for us alone, all that is on it counted: the rate,
    /// always.
    Dedicated(u64),
    /// Bits a second that the link carries at most, all that is on it counted: the first rate, and
    /// a ceiling below which it is measured.
    Stated(u64),
    /// Unknown: measured.
    Auto,
}

impl Rate {
    /// The stated rate, in bits a second.
    pub fn stated(self) -> Option<u64> {
        match self {
            Self::Dedicated(rate) | Self::Stated(rate) => Some(rate),
            Self::Auto => None,
        }
    }
}
