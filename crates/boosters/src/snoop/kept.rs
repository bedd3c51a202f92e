//! State of one connection: segments in flight, and the arrived ones among them.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    time::Duration,
};

use crate::{packet::Packet, tcp::Tcp};

/// Numbers farther apart are not of the same connection (RFC 7323 §2.3).
const FAR: i64 = 1 << 30;
/// Cost of a kept segment beyond its bytes.
const PLACE: usize = 128;
/// Missing segments that one acknowledgement names at most.
const MISSING_MAX: usize = 64;
/// Segments that one acknowledgement looks at for these.
const VISITED_MAX: usize = 1024;

/// Connection with a local host as sender. Its numbers are extended beyond 2^32.
#[derive(Debug, Default)]
pub(super) struct Flow {
    /// Kept segments by number.
    pub kept: BTreeMap<u64, Kept>,
    /// Numbers of those that SACK has not reported. The receiver may still drop reported ones
    /// (RFC 2018 §8), so all are kept.
    awaited: BTreeSet<u64>,
    /// Highest end of a reported one.
    reported: u64,
    /// Number after the highest byte that has left for the link.
    pub sent: u64,
    pub acked: Option<u64>,
    pub window: u16,
    pub rtt: Option<Duration>,
    /// Number of segments that have left, local retransmissions included; and the last of them that
    /// has arrived.
    left: u64,
    newest: u64,
    pub due: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct Kept {
    pub packet: Packet,
    pub end: u64,
    pub sent: Duration,
    pub tries: u8,
    /// Time of its first local retransmission, if any.
    pub since: Option<Duration>,
    /// True if the host or the booster has sent it more than once: its acknowledgement gives no
    /// sample (Karn's rule, RFC 6298 §3).
    pub repeated: bool,
    /// Position of its last transmission in the order of leaving.
    pub order: u64,
}

impl Kept {
    pub fn cost(&self) -> usize {
        self.packet.bytes.len() + PLACE
    }
}

/// Gaps in the received data.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Missing {
    /// Kept segments in them, in order.
    pub kept: Vec<u64>,
    /// True if other segments are missing that never left for the link, or are not kept any more:
    /// their sender has to retransmit them.
    pub others: bool,
}

impl Flow {
    pub fn new(seq: u32) -> Self {
        Self {
            sent: (1 << 40) | u64::from(seq),
            ..Self::default()
        }
    }

    /// Returns the extended number near the sent ones; `None` if there is none.
    pub fn near(&self, seq: u32) -> Option<u64> {
        let ahead = i64::from(seq.wrapping_sub(self.sent as u32) as i32);
        (ahead.abs() <= FAR).then(|| self.sent.saturating_add_signed(ahead))
    }

    pub fn bytes(&self) -> usize {
        self.kept.values().map(Kept::cost).sum()
    }

    /// Returns the position of a segment that leaves.
    pub fn next_order(&mut self) -> u64 {
        self.left += 1;
        self.left
    }

    /// Notes the arrival of a segment. For one sent more than once, it is unknown which
    /// transmission arrived.
    pub fn on_arrival(&mut self, order: u64, repeated: bool) {
        if !repeated {
            self.newest = self.newest.max(order);
        }
    }

    /// Notes the arrival of a segment after the one of this number, if that has not been counted
    /// yet.
    pub fn on_duplicate(&mut self, seq: u64) {
        if let Some(kept) = self.kept.get(&seq).filter(|kept| !kept.repeated) {
            self.newest = self.newest.max(kept.order + 1);
        }
    }

    /// Keeps a segment that leaves. Returns the one it replaces.
    pub fn insert(&mut self, seq: u64, mut kept: Kept) -> Option<Kept> {
        kept.order = self.next_order();
        match self.kept.entry(seq) {
            Entry::Vacant(entry) => {
                self.awaited.insert(seq);
                entry.insert(kept);
                None
            }
            Entry::Occupied(mut entry) => {
                kept.repeated = true;
                if kept.end > entry.get().end {
                    self.awaited.insert(seq);
                }
                Some(entry.insert(kept))
            }
        }
    }

    /// Removes the first segment, if the acknowledgement of this number covers it.
    pub fn take_acked(&mut self, ack: u64) -> Option<Kept> {
        let first = self.kept.first_entry()?;
        if first.get().end > ack {
            return None;
        }
        let (seq, kept) = first.remove_entry();
        self.awaited.remove(&seq);
        Some(kept)
    }

    /// Returns whether a segment that left later has overtaken it: such links preserve order.
    pub fn is_overtaken(&self, kept: &Kept) -> bool {
        kept.order < self.newest
    }

    /// Returns the segments missing before others that have arrived (RFC 2018). An acknowledgement
    /// has room for three or four ranges: ranges of earlier ones are remembered.
    pub fn missing(&mut self, ack: u64, tcp: &Tcp<'_>) -> Missing {
        for (begin, end) in tcp.sack() {
            let (Some(begin), Some(end)) = (self.near(begin), self.near(end)) else {
                continue;
            };
            if begin < ack || begin >= end || end > self.sent {
                continue;
            }
            self.report(begin, end);
        }
        let mut missing = Missing::default();
        if self.reported <= ack {
            return missing;
        }
        let mut awaited = self.awaited.range(ack..self.reported).peekable();
        let mut at = ack;
        for (visited, (seq, kept)) in self.kept.range(ack..self.reported).enumerate() {
            missing.others |= *seq > at;
            if missing.kept.len() >= MISSING_MAX || visited >= VISITED_MAX {
                missing.others = true;
                break;
            }
            missing.kept.extend(awaited.next_if_eq(&seq));
            at = at.max(kept.end);
        }
        missing
    }

    /// Returns the number of segments that SACK has not reported.
    #[cfg(test)]
    pub fn awaited(&self) -> usize {
        self.awaited.len()
    }

    /// Notes the arrival of segments within a range. Each is looked at once, as ranges repeat those
    /// of earlier acknowledgements.
    fn report(&mut self, begin: u64, end: u64) {
        let within = |seq: &u64| self.kept.get(seq).is_some_and(|kept| kept.end <= end);
        let awaited = self.awaited.range(begin..end).copied();
        let reported: Vec<_> = awaited.filter(within).collect();
        for seq in reported {
            self.awaited.remove(&seq);
            if let Some(kept) = self.kept.get(&seq) {
                self.reported = self.reported.max(kept.end);
                if !kept.repeated {
                    self.newest = self.newest.max(kept.order);
                }
            }
        }
    }
}
