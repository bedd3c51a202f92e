//! Violations that the simulator detects.

use std::{fmt, time::Duration};

use tunnel::{
    class::Class,
    session::{Event, PacketQueue},
    wire::{ResetCode, StreamId},
};

use crate::{plan::Plan, side::End};

/// Violation of the protocol or of an invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "field names are self-explanatory")]
pub enum Violation {
    /// A placed byte differs from the one written at that position.
    WrongByte { stream: StreamId, at: u64 },
    /// Bytes were placed that the peer has not written.
    PlacedUnwritten {
        stream: StreamId,
        until: u64,
        written: u64,
    },
    /// Bytes were placed beyond the allowed position.
    PlacedBeyond {
        stream: StreamId,
        until: u64,
        allowed: u64,
    },
    /// Bytes were placed that had been reported readable.
    PlacedAgain {
        stream: StreamId,
        from: u64,
        readable: u64,
    },
    /// The store was asked about a stream that does not exist, or has ended.
    NoSuchStream { stream: StreamId },
    /// Bytes were read that are not written yet.
    ReadUnwritten {
        stream: StreamId,
        until: u64,
        written: u64,
    },
    /// Bytes were read that had been reported acknowledged.
    ReadAcked {
        stream: StreamId,
        from: u64,
        acked: u64,
    },
    /// Bytes were reported readable that were never placed.
    ReadableUnplaced {
        stream: StreamId,
        until: u64,
        placed: u64,
    },
    /// A report of readable or acknowledged bytes without an increase.
    NoNews { event: Event },
    /// The end was reported before the peer had finished and all its bytes were readable.
    FinishedEarly {
        stream: StreamId,
        readable: u64,
        written: u64,
        finished: bool,
    },
    /// Bytes were reported acknowledged that the peer does not have.
    AckedUnplaced {
        stream: StreamId,
        until: u64,
        placed: u64,
    },
    /// A stream was reported closed with bytes missing.
    ClosedEarly { stream: StreamId },
    /// A reset was reported that the peer has not requested.
    ResetUnasked { stream: StreamId, code: ResetCode },
    /// A stream was reported that the peer has not opened, or with other properties.
    OpenedUnasked { stream: StreamId, class: Class },
    /// An event of a stream that was not reported opened, or has ended.
    OutOfPlace { event: Event },
    /// A message came that was not sent, or with other content.
    WrongMessage { channel: u8 },
    /// A message came a second time.
    MessageTwice { number: usize },
    /// A queue was asked that had reported itself empty.
    AskedInVain { queue: PacketQueue },
    /// More streams are open than allowed.
    ManyStreams { open: usize, most: u32 },
    /// The peer's packets were refused.
    Refused { why: String },
    /// The session ended without a request.
    SessionEnded { event: Event },
    /// A new session began without a restart.
    FreshUnasked,
    /// Time does not advance: a deadline that has passed stays.
    BusyLoop { deadline: Duration },
    /// Repeated wake-ups without anything to do.
    IdleWakes { wakes: u64 },
    /// More was sent than the configured rate allows.
    Flood { bytes: u64, allowed: u64 },
    /// A datagram is longer than allowed.
    Oversized { length: usize, most: usize },
    /// More memory is held than allowed.
    Memory { held: u64, most: u64 },
    /// Nothing will ever happen again, or it takes far too long.
    Stuck { open: Vec<String> },
    /// The side panicked.
    Panicked { message: String },
}

impl Violation {
    /// Returns the name without fields, to compare kinds.
    pub fn kind(&self) -> String {
        let text = format!("{self:?}");
        text.split([' ', '{']).next().unwrap_or_default().to_owned()
    }
}

/// Violation, with the data to repeat the run.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Violation found.
    pub violation: Violation,
    /// End that violated.
    pub end: End,
    /// Time of the violation.
    pub at: Duration,
    /// Plan of the run.
    pub plan: Box<Plan>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            violation,
            end,
            at,
            plan,
        } = self;
        writeln!(
            f,
            "seed {}: end {end} after {at:?}: {violation:?}",
            plan.seed
        )?;
        writeln!(
            f,
            "repeat with TUNNEL_SEED={} (TUNNEL_TRACE=1 prints packets)",
            plan.seed
        )?;
        write!(f, "{plan:?}")
    }
}
