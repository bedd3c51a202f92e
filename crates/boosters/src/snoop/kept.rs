//! State of one connection: segments in flight, and the arrived ones among them.

use std::{
    collections::{BTreeMap, btree_map::Entry},
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
    /// True if SACK has reported it. The receiver may still drop it (RFC 2018 §8), so it is kept.
    pub arrived: bool,
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
                entry.insert(kept);
                None
            }
            Entry::Occupied(mut entry) => {
                kept.repeated = true;
                kept.arrived = entry.get().arrived && kept.end <= entry.get().end;
                Some(entry.insert(kept))
            }
        }
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
            for kept in self.kept.range_mut(begin..end).map(|(_, kept)| kept) {
                if kept.end <= end && !std::mem::replace(&mut kept.arrived, true) && !kept.repeated
                {
                    self.newest = self.newest.max(kept.order);
                }
            }
        }
        let arrived = self.kept.range(ack..).rev();
        let highest = (arrived.map(|(_, kept)| kept)).find(|kept| kept.arrived);
        let Some(highest) = highest.map(|kept| kept.end) else {
            return Missing::default();
        };
        let mut missing = Missing::default();
        let mut at = ack;
        for (visited, (seq, kept)) in self.kept.range(ack..highest).enumerate() {
            missing.others |= *seq > at;
            if missing.kept.len() >= MISSING_MAX || visited >= VISITED_MAX {
                missing.others = true;
                break;
            }
            if !kept.arrived {
                missing.kept.push(*seq);
            }
            at = at.max(kept.end);
        }
        missing
    }
}
