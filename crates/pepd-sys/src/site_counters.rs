//! Counters of one site's flows.

use std::{
    array,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use pep_core::stats::EndReason;

use crate::family::Family;

/// Counters of one site's flows, or of flows from peers. All threads update them without a lock: at
/// the begin and end of a flow, and once a second for its bytes.
#[derive(Debug, Default)]
pub struct SiteCounters {
    accepted: AtomicU64,
    open: AtomicU64,
    ended: [AtomicU64; EndReason::ALL.len()],
    bytes: [AtomicU64; 2],
    arrived: [AtomicU64; Family::ALL.len()],
    lost: [AtomicBool; Family::ALL.len()],
}

/// A snapshot of a [`SiteCounters`]. Its parts may differ by flows that begin or end meanwhile.
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

impl SiteCounters {
    /// Counts the begin of a flow.
    pub fn begin(&self) {
        self.accepted.fetch_add(1, Relaxed);
        self.open.fetch_add(1, Relaxed);
    }

    /// Counts a flow as no longer open.
    pub fn close(&self) {
        self.open.fetch_sub(1, Relaxed);
    }

    /// Counts the end of a flow by its reason.
    pub fn end(&self, reason: EndReason) {
        self.ended[reason as usize].fetch_add(1, Relaxed);
    }

    /// Counts bytes relayed up and down.
    pub fn relay(&self, bytes: [u64; 2]) {
        for (sum, bytes) in self.bytes.iter().zip(bytes) {
            if bytes > 0 {
                sum.fetch_add(bytes, Relaxed);
            }
        }
    }

    /// Counts a connection of this family accepted by a listener.
    pub fn arrive(&self, family: Family) {
        self.arrived[family as usize].fetch_add(1, Relaxed);
    }

    /// Returns the connections of this family that listeners have accepted.
    pub fn arrived(&self, family: Family) -> u64 {
        self.arrived[family as usize].load(Relaxed)
    }

    /// Sets whether redirected SYNs of this family fail to arrive.
    pub fn set_lost(&self, family: Family, is_lost: bool) {
        self.lost[family as usize].store(is_lost, Relaxed);
    }

    /// Returns the families whose redirected SYNs do not arrive.
    pub fn lost(&self) -> impl Iterator<Item = Family> {
        let is_lost = |family: &Family| self.lost[*family as usize].load(Relaxed);
        Family::ALL.into_iter().filter(is_lost)
    }

    /// Takes a snapshot.
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
            let site_counters = SiteCounters::default();
            site_counters.end(reason);
            let mut expected = Tallied::default();
            expected.ended[place] = 1;
            assert_eq!(site_counters.now(), expected, "{reason}");
        }
    }

    #[test]
    fn what_is_added_is_there() {
        let site_counters = SiteCounters::default();
        site_counters.begin();
        site_counters.begin();
        site_counters.close();
        site_counters.relay([3, 0]);
        site_counters.relay([4, 5]);
        let now = site_counters.now();
        assert_eq!((now.accepted, now.open, now.bytes), (2, 1, [7, 5]));
    }
}
