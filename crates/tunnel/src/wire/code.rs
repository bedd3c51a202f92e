//! Why something ends.

/// Why a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CloseCode {
    /// The pepd ends or the configuration changed.
    Shutdown = 0,
    /// What the peer sent makes no sense.
    Protocol = 1,
    /// The peer holds more than it may.
    Limit = 2,
}

impl CloseCode {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Shutdown, Self::Protocol, Self::Limit];

    /// The code of that number on the wire.
    #[must_use]
    pub fn from_wire(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// Why a stream ends at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ResetCode {
    /// A host reset its connection.
    Host = 0,
    /// The destination refused the connection.
    Refused = 1,
    /// The destination's network cannot be reached.
    Unreachable = 2,
    /// The destination does not answer.
    TimedOut = 3,
    /// The far pepd cannot take the flow: a limit, no such policy.
    Limit = 4,
    /// The session began anew, and what the stream had was lost with the old one.
    Restarted = 5,
    /// Something went wrong in a pepd.
    Internal = 6,
    /// The flow has come to its end here, and all of it has arrived.
    Ended = 7,
    /// What was held of the flow was held for too long.
    Expired = 8,
}

impl ResetCode {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 9] = [
        Self::Host,
        Self::Refused,
        Self::Unreachable,
        Self::TimedOut,
        Self::Limit,
        Self::Restarted,
        Self::Internal,
        Self::Ended,
        Self::Expired,
    ];

    /// The code of that number on the wire.
    #[must_use]
    pub fn from_wire(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}
