//! Custody shared by all flows of a thread: limits and the disk, which all threads share.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
};

use pep_core::custody::{Bounds, FlowKey, Ledger, Place};
use pepd_sys::stats::Counters;

use crate::{
    custody::{Answered, Record, Reply, Spill, Spot},
    table::Key,
};

/// Seconds without requests of a kind after one has failed.
const PAUSE: u32 = 2;
/// Minimum interval between log lines on a failing disk, in seconds.
const LOGGED_EVERY_S: u32 = 60;

/// Custody shared by all flows of a thread.
#[derive(Debug)]
pub(crate) struct Custody {
    pub(super) ledger: RefCell<Ledger>,
    pub(super) spill: RefCell<Option<Spill<Key>>>,
    pub(super) counters: Arc<Counters>,
    /// Seconds until the next request of each kind, and until the next log line.
    pauses: [Cell<u32>; 2],
    quiet: Cell<u32>,
}

/// A request to the disk. After one has failed, none of its kind follow for a while: a full disk
/// keeps no bytes from returning.
#[derive(Debug, Clone, Copy)]
pub(super) enum Request {
    Write,
    Read,
}

impl Custody {
    /// Creates the value with the ledger of the thread's flows, to which the sites were added by
    /// number.
    pub(crate) fn new(
        ledger: Ledger,
        spill: Option<Spill<Key>>,
        counters: &Arc<Counters>,
    ) -> Rc<Self> {
        Rc::new(Self {
            ledger: RefCell::new(ledger),
            spill: RefCell::new(spill),
            counters: Arc::clone(counters),
            pauses: Default::default(),
            quiet: Cell::default(),
        })
    }

    /// Creates the value with these limits for the flows of one site.
    pub(crate) fn within(
        bounds: Bounds,
        spill: Option<Spill<Key>>,
        counters: &Arc<Counters>,
    ) -> Rc<Self> {
        let mut ledger = Ledger::new(bounds);
        ledger.add_site(Bounds::NONE);
        Self::new(ledger, spill, counters)
    }

    /// Returns the bytes held there by all flows.
    #[cfg(test)]
    pub(crate) fn held(&self, place: Place) -> u64 {
        self.ledger.borrow().held_by_all(place)
    }

    /// Takes bytes for a new flow of a site, which never ends.
    #[cfg(test)]
    pub(crate) fn try_take(&self, site: usize, place: Place, bytes: u64) -> bool {
        let flow = self.open(site, 0);
        self.ledger.borrow_mut().try_take(flow, place, bytes)
    }

    /// Returns whether disk requests are pending.
    #[cfg(test)]
    pub(crate) fn waits_for_disk(&self) -> bool {
        self.spill.borrow().as_ref().is_some_and(Spill::is_busy)
    }

    /// Adds a flow of a site and a peer.
    pub(super) fn open(&self, site: usize, peer: usize) -> FlowKey {
        let mut ledger = self.ledger.borrow_mut();
        let site = ledger.site(site);
        ledger.open(site, peer, Bounds::NONE)
    }

    /// Handles an answer of the disk.
    pub(crate) fn answered(&self, answered: Answered<Key>) -> Option<Reply<Key>> {
        let mut spill = self.spill.borrow_mut();
        spill.as_mut().map(|spill| answered.by(spill))
    }

    /// Frees a record.
    pub(crate) fn forget(&self, spot: Spot) {
        if let Some(spill) = &mut *self.spill.borrow_mut() {
            spill.forget(spot);
        }
    }

    /// Takes back the memory of a record.
    pub(super) fn reuse(&self, record: Record) {
        if let Some(spill) = &mut *self.spill.borrow_mut() {
            spill.reuse(record);
        }
    }

    /// Counts down the pauses; called every second.
    pub(crate) fn age(&self) {
        for seconds in self.pauses.iter().chain([&self.quiet]) {
            seconds.set(seconds.get().saturating_sub(1));
        }
        let ledger = self.ledger.borrow();
        // The sums are those of all threads, each of which sets them. Read under the lock, they are
        // never older than those set before.
        self.counters.update(|stats| {
            stats.custody_memory_bytes = ledger.held_by_all(Place::Memory);
            stats.custody_disk_bytes = ledger.held_by_all(Place::Disk);
        });
    }

    /// Returns whether a request may be made now.
    pub(super) fn may(&self, request: Request) -> bool {
        self.pauses[request as usize].get() == 0
    }

    pub(super) fn on_disk_failed(&self, err: &dyn std::error::Error, request: Request) {
        self.pauses[request as usize].set(PAUSE);
        self.counters.update(|stats| stats.custody_disk_errors += 1);
        if self.quiet.get() == 0 {
            self.quiet.set(LOGGED_EVERY_S);
            let what = match request {
                Request::Write => "write",
                Request::Read => "read",
            };
            tracing::error!(
                error = %err,
                "custody on disk: cannot {what}: flows wait, hosts' windows close; check `custody.directory` \
                 (logged up to once a minute)"
            );
        }
    }
}
