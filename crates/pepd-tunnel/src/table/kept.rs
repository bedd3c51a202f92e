//! Custody shared by all flows of all peers: limits and the disk.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
};

use pep_core::custody::{Bounds, FlowKey, Ledger, Place, SiteKey};
use pepd_sys::stats::Counters;

use crate::{
    custody::{Answered, Record, Reply, Spill, Spot},
    table::Key,
};

/// Seconds without disk requests after a failure.
const PAUSE: u32 = 2;
/// Minimum interval between log lines on a failing disk, in seconds.
const LOGGED_EVERY_S: u32 = 60;

/// Custody shared by all flows.
#[derive(Debug)]
pub(crate) struct Custody {
    pub(super) ledger: RefCell<Ledger>,
    /// Keys of sites, by number.
    sites: Vec<SiteKey>,
    pub(super) spill: RefCell<Option<Spill<Key>>>,
    pub(super) counters: Arc<Counters>,
    /// Seconds until the next disk request, and until the next log line.
    pub(super) pause: Cell<u32>,
    quiet: Cell<u32>,
}

impl Custody {
    /// Creates the value with the limits of all sites together and of each.
    pub(crate) fn new(
        bounds: Bounds,
        sites: &[Bounds],
        spill: Option<Spill<Key>>,
        counters: &Arc<Counters>,
    ) -> Rc<Self> {
        let mut ledger = Ledger::new(bounds);
        let sites = sites.iter().map(|bounds| ledger.add_site(*bounds));
        Rc::new(Self {
            sites: sites.collect(),
            ledger: RefCell::new(ledger),
            spill: RefCell::new(spill),
            counters: Arc::clone(counters),
            pause: Cell::default(),
            quiet: Cell::default(),
        })
    }

    /// Returns the bytes held there by all flows.
    #[cfg(test)]
    pub(crate) fn held(&self, place: Place) -> u64 {
        self.ledger.borrow().held_by_all(place)
    }

    /// Returns whether disk requests are pending.
    #[cfg(test)]
    pub(crate) fn waits_for_disk(&self) -> bool {
        self.spill.borrow().as_ref().is_some_and(Spill::is_busy)
    }

    /// Adds a flow of a site.
    pub(super) fn open(&self, site: usize) -> FlowKey {
        let bounds = Bounds::NONE;
        self.ledger.borrow_mut().open(self.sites[site], bounds)
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
        self.pause.set(self.pause.get().saturating_sub(1));
        self.quiet.set(self.quiet.get().saturating_sub(1));
        let ledger = self.ledger.borrow();
        let [memory, disk] = Place::ALL.map(|place| ledger.held_by_all(place));
        self.counters.update(|stats| {
            stats.custody_memory_bytes = memory;
            stats.custody_disk_bytes = disk;
        });
    }

    pub(super) fn on_disk_failed(&self, err: &dyn std::error::Error, what: &str) {
        self.pause.set(PAUSE);
        self.counters.update(|stats| stats.custody_disk_errors += 1);
        if self.quiet.get() == 0 {
            self.quiet.set(LOGGED_EVERY_S);
            tracing::error!(
                error = %err,
                "custody on disk: cannot {what}: flows wait, hosts' windows close; check `custody.directory` \
                 (logged up to once a minute)"
            );
        }
    }
}
