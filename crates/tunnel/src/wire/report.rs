//! What a receiver tells its sender.

use std::ops::Range;

/// What has arrived, in full: any one report is enough to act on.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Report {
    /// The highest packet number that has arrived, if any; when, by the receiver's clock; and how
    /// long ago that was when this was sent.
    pub highest: Option<Highest>,
    /// Packets and bytes (of datagrams) that have arrived since the session began, without duplicates.
    pub packets: u64,
    /// See `packets`.
    pub bytes: u64,
    /// Of the packets, those marked with congestion experienced (RFC 3168).
    pub marked: u64,
    /// All segments below this number have arrived.
    pub below: u64,
    /// Of what segments `ranges` speaks; outside nothing is said, other than by `below`.
    pub span: Span,
    /// Segments that have arrived at or above `below`, in rising order, disjoint, not touching.
    pub ranges: Vec<Range<u64>>,
    /// Packet numbers missing between two arrivals, the newest ones, oldest first; each is told in two
    /// reports at least, so the sender must know them by their numbers.
    pub gaps: Vec<Gap>,
    /// Since the session began, for the fit of overcode ([`fec::control::Counts`]): packet numbers
    /// looked at, lost ones among them, and bursts of these. Silences are left out.
    pub counts: [u64; 3],
}

/// The highest packet number of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Highest {
    /// The number.
    pub number: u64,
    /// When it arrived, in microseconds of the receiver's clock.
    pub arrived_us: u64,
    /// How long before the report, in microseconds.
    pub held_us: u64,
}

/// The segments that a report speaks of: at or above `from` and below `until`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first one.
    pub from: u64,
    /// After the last one; the maximum for no end.
    pub until: u64,
}

impl Default for Span {
    fn default() -> Self {
        Self {
            from: 0,
            until: u64::MAX,
        }
    }
}

/// Packet numbers that did not arrive between two that did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The number that arrived before it; the first missing one is the next.
    pub before: u64,
    /// How many are missing.
    pub missing: u64,
    /// When `before` arrived, in microseconds of the receiver's clock.
    pub before_us: u64,
    /// When the one after the gap arrived.
    pub after_us: u64,
}
