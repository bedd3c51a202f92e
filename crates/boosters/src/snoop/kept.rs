//! What is known of one connection: segments that are under way, and which of them have arrived.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    time::Duration,
};

use crate::{packet::Packet, tcp::Tcp};

/// Numbers farther from each other than this are not of the same connection (RFC 7323 §2.3).
const FAR: i64 = 1 << 30;
/// What a segment that is kept costs beyond its bytes.
const PLACE: usize = 128;

/// A connection of which our host is the sender. Its numbers are counted on, beyond 2^32.
#[derive(Debug, Default)]
pub(super) struct Flow {
    /// By their numbers.
    pub kept: BTreeMap<u64, Kept>,
    /// After the highest byte that has left for the link.
    pub sent: u64,
    pub acked: Option<u64>,
    pub window: u16,
    pub rtt: Option<Duration>,
    /// How many have left, ours too; and the last of them that has arrived.
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
    /// When it went again first, if it has.
    pub since: Option<Duration>,
    /// Our host has sent it more than once, or we have: its acknowledgement measures nothing (Karn's rule, RFC 6298 §3).
    pub repeated: bool,
    /// SACK has said that it is there. The receiver may still drop it (RFC 2018 §8), so that it is kept.
    pub arrived: bool,
    /// As which of all that have left it last did.
    pub order: u64,
}

impl Kept {
    pub fn cost(&self) -> usize {
        self.packet.bytes.len() + PLACE
    }
}

/// What is missing of what was sent.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Missing {
    /// Segments that are kept, in order.
    pub kept: Vec<u64>,
    /// There is more that never left for the link, or is not kept any more: its sender has to send it again.
    pub others: bool,
}

impl Flow {
    pub fn new(seq: u32) -> Self {
        Self {
            sent: (1 << 40) | u64::from(seq),
            ..Self::default()
        }
    }

    /// The number near those that were sent; `None` if it is near none.
    pub fn near(&self, seq: u32) -> Option<u64> {
        let ahead = i64::from(seq.wrapping_sub(self.sent as u32) as i32);
        (ahead.abs() <= FAR).then(|| self.sent.saturating_add_signed(ahead))
    }

    pub fn bytes(&self) -> usize {
        self.kept.values().map(Kept::cost).sum()
    }

    /// Something leaves: as which one.
    pub fn next_order(&mut self) -> u64 {
        self.left += 1;
        self.left
    }

    /// A segment has arrived. Of one that went more than once nobody knows which of them.
    pub fn on_arrival(&mut self, order: u64, repeated: bool) {
        if !repeated {
            self.newest = self.newest.max(order);
        }
    }

    /// Something beyond the segment of this number has arrived, if that is at work for the first time.
    pub fn on_duplicate(&mut self, seq: u64) {
        if let Some(kept) = self.kept.get(&seq).filter(|kept| !kept.repeated) {
            self.newest = self.newest.max(kept.order + 1);
        }
    }

    /// Keeps a segment that leaves; what it replaces.
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

    /// Whether the segment has been overtaken by one that left later: links like these keep the order.
    pub fn is_overtaken(&self, kept: &Kept) -> bool {
        kept.order < self.newest
    }

    /// Segments that are missing before others that have arrived (RFC 2018). An acknowledgement has room for three ranges or four: those that others
    /// have named are remembered.
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
        for (seq, kept) in self.kept.range(ack..highest) {
            missing.others |= *seq > at;
            if !kept.arrived {
                missing.kept.push(*seq);
            }
            at = at.max(kept.end);
        }
        missing
    }
}
