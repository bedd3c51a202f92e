//! Rate as stated by the operator.

/// Rate setting of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// Bits per second that the link carries for this session alone, all overhead included: the
    /// constant sending rate.
    Dedicated(u64),
    /// Maximum bits per second of the link, all overhead included: the initial rate, and a ceiling
    /// for the measured one.
    Stated(u64),
    /// Unknown: the rate is measured.
    Auto,
}

impl Rate {
    /// Returns the stated rate, in bits per second.
    pub fn stated(self) -> Option<u64> {
        match self {
            Self::Dedicated(rate) | Self::Stated(rate) => Some(rate),
            Self::Auto => None,
        }
    }
}
