//! Reason codes for the end of sessions and streams.

/// Reason for the end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CloseCode {
    /// pepd stops, or its configuration changed.
    Shutdown = 0,
    /// The peer violated the protocol.
    Protocol = 1,
    /// The peer exceeded a resource limit.
    Limit = 2,
    /// The session ends here, and its flows continue in the next one.
    Elsewhere = 3,
}

/// Lowest number of codes that no version has defined yet and that leave flows alone.
const HARMLESS: u8 = 128;

impl CloseCode {
    /// All codes, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Shutdown, Self::Protocol, Self::Limit, Self::Elsewhere];

    /// Returns the code with this number on the wire. A code of a later version counts as
    /// [`Limit`](Self::Limit), and from 128 on as [`Elsewhere`](Self::Elsewhere).
    #[must_use]
    pub fn from_wire(number: u8) -> Self {
        let unknown = if number < HARMLESS {
            Self::Limit
        } else {
            Self::Elsewhere
        };
        Self::ALL
            .get(usize::from(number))
            .copied()
            .unwrap_or(unknown)
    }
}

/// Reason for the reset of a stream.
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
    /// The session restarted, and the stream's data was lost with the old one.
    Restarted = 5,
    /// Internal error of a pepd.
    Internal = 6,
    /// The flow has ended at the sender, and all of its data has arrived.
    Ended = 7,
    /// Data of the flow was held for too long.
    Expired = 8,
}

impl ResetCode {
    /// All codes, in the order of their numbers.
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

    /// Returns the code with this number on the wire.
    #[must_use]
    pub fn from_wire(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}
