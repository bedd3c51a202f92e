//! What an end must not do.

use std::{fmt, time::Duration};

use tunnel::{
    class::Class,
    session::{Event, PacketQueue},
    wire::{ResetCode, StreamId},
};

use crate::{plan::Plan, side::End};

/// Something that must not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields' names say it")]
pub enum Violation {
    /// A byte was placed that is not the one that was written there.
    WrongByte { stream: StreamId, at: u64 },
    /// Bytes were placed that the peer has not written.
    PlacedUnwritten {
        stream: StreamId,
        until: u64,
        written: u64,
    },
    /// Bytes were placed beyond what was allowed.
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
    /// The store was asked about a stream that is not there, or no more.
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
    /// What is readable, or acknowledged, did not become more.
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
    /// A stream was reported closed on which something is missing.
    ClosedEarly { stream: StreamId },
    /// A reset was reported that the peer has not asked for.
    ResetUnasked { stream: StreamId, code: ResetCode },
    /// A stream was reported that the peer has not opened, or not like this.
    OpenedUnasked { stream: StreamId, class: Class },
    /// Something was told of a stream that was not reported opened, or has ended.
    OutOfPlace { event: Event },
    /// A message came that was not sent, or not like this.
    WrongMessage { channel: u8 },
    /// A message came a second time.
    MessageTwice { number: usize },
    /// A queue was asked that has nothing, and has said so.
    AskedInVain { queue: PacketQueue },
    /// More streams are open than may be.
    ManyStreams { open: usize, most: u32 },
    /// The peer's packets were refused.
    Refused { why: String },
    /// The session ended, though nobody asked for it.
    SessionEnded { event: Event },
    /// A new session began, though nobody began anew.
    FreshUnasked,
    /// Time does not go on: a deadline that has passed stays.
    BusyLoop { deadline: Duration },
    /// Woken again and again without anything to do.
    IdleWakes { wakes: u64 },
    /// More is sent than the stated rate allows.
    Flood { bytes: u64, allowed: u64 },
    /// A datagram is longer than may be.
    Oversized { length: usize, most: usize },
    /// More memory is held than may be.
    Memory { held: u64, most: u64 },
    /// Nothing will ever happen again, or it takes far too long.
    Stuck { open: Vec<String> },
    /// It panicked.
    Panicked { message: String },
}

impl Violation {
    /// Its name alone, to tell whether two are of one kind.
    pub fn kind(&self) -> String {
        let text = format!("{self:?}");
        text.split([' ', '{']).next().unwrap_or_default().to_owned()
    }
}

/// A violation, and how to see it again.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What was violated.
    pub violation: Violation,
    /// By which end.
    pub end: End,
    /// When.
    pub at: Duration,
    /// What was to happen.
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
            "again: TUNNEL_SEED={} (TUNNEL_TRACE=1 prints packets)",
            plan.seed
        )?;
        write!(f, "{plan:?}")
    }
}
