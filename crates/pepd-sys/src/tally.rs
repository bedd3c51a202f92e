//! What the flows of one site have come to.

use std::{
    array,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use pep_core::stats::EndReason;

use crate::family::Family;

/// Counts of the flows of one site, or of those that peers have sent. All threads add to it,
/// without a lock: when a flow begins, when it ends, and of its bytes once a second.
#[derive(Debug, Default)]
pub struct Tally {
    accepted: AtomicU64,
    open: AtomicU64,
    ended: [AtomicU64; EndReason::ALL.len()],
    bytes: [AtomicU64; 2],
    arrived: [AtomicU64; Family::ALL.len()],
    lost: [AtomicBool; Family::ALL.len()],
}

/// A [`Tally`] at one moment. Flows begin and end meanwhile: its parts may differ by these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tallied {
    /// Flows accepted.
    pub accepted: u64,
    /// Flows open now.
    pub open: u64,
    /// Flows that ended, in the order of [`EndReason::ALL`].
    pub ended: [u64; EndReason::ALL.len()],
    /// Bytes relayed up, from clients to servers, and down.
    pub bytes: [u64; 2],
}

impl Tally {
    /// A flow begins.
    pub fn begin(&self) {
        self.accepted.fetch_add(1, Relaxed);
        self.open.fetch_add(1, Relaxed);
    }

    /// One that has begun is open no more.
    pub fn close(&self) {
        self.open.fetch_sub(1, Relaxed);
    }

    /// A flow has ended for this reason.
    pub fn end(&self, reason: EndReason) {
        self.ended[reason as usize].fetch_add(1, Relaxed);
    }

    /// These bytes were relayed up and down.
    pub fn relay(&self, bytes: [u64; 2]) {
        for (sum, bytes) in self.bytes.iter().zip(bytes) {
            if bytes > 0 {
                sum.fetch_add(bytes, Relaxed);
            }
        }
    }

    /// A listener has accepted a connection of this family.
    pub fn arrive(&self, family: Family) {
        self.arrived[family as usize].fetch_add(1, Relaxed);
    }

    /// Connections of this family that listeners have accepted.
    pub fn arrived(&self, family: Family) -> u64 {
        self.arrived[family as usize].load(Relaxed)
    }

    /// Says whether SYNs of this family that are redirected do not arrive.
    pub fn set_lost(&self, family: Family, is_lost: bool) {
        self.lost[family as usize].store(is_lost, Relaxed);
    }

    /// Families of which SYNs that are redirected do not arrive.
    pub fn lost(&self) -> impl Iterator<Item = Family> {
        let is_lost = |family: &Family| self.lost[*family as usize].load(Relaxed);
        Family::ALL.into_iter().filter(is_lost)
    }

    /// All of it now.
    pub fn now(&self) -> Tallied {
        Tallied {
            accepted: self.accepted.load(Relaxed),
            open: self.open.load(Relaxed),
            ended: array::from_fn(|index| self.ended[index].load(Relaxed)),
            bytes: array::from_fn(|index| self.bytes[index].load(Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_place() {
        for (place, reason) in EndReason::ALL.into_iter().enumerate() {
            let tally = Tally::default();
            tally.end(reason);
            let mut expected = Tallied::default();
            expected.ended[place] = 1;
            assert_eq!(tally.now(), expected, "{reason}");
        }
    }

    #[test]
    fn what_is_added_is_there() {
        let tally = Tally::default();
        tally.begin();
        tally.begin();
        tally.close();
        tally.relay([3, 0]);
        tally.relay([4, 5]);
        let now = tally.now();
        assert_eq!((now.accepted, now.open, now.bytes), (2, 1, [7, 5]));
    }
}
