//! What all flows of all peers share that keep something while links are away: who may hold how much, and the disk.

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

/// After a failure the disk is left alone for so many seconds.
const PAUSE: u32 = 2;
/// How often the log tells of a disk that fails, in seconds.
const LOGGED_EVERY_S: u32 = 60;

/// What all flows share that keep something.
#[derive(Debug)]
pub(crate) struct Custody {
    pub(super) ledger: RefCell<Ledger>,
    /// By the numbers of the sites.
    sites: Vec<SiteKey>,
    pub(super) spill: RefCell<Option<Spill<Key>>>,
    pub(super) counters: Arc<Counters>,
    /// Seconds for which the disk is left alone, and until it may be told of again.
    pub(super) pause: Cell<u32>,
    quiet: Cell<u32>,
}

impl Custody {
    /// Of sites that may have so much each, and all together.
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

    /// Bytes that all hold there.
    #[cfg(test)]
    pub(crate) fn held(&self, place: Place) -> u64 {
        self.ledger.borrow().held_by_all(place)
    }

    /// Whether the disk was asked for something that it has not done.
    #[cfg(test)]
    pub(crate) fn waits_for_disk(&self) -> bool {
        self.spill.borrow().as_ref().is_some_and(Spill::is_busy)
    }

    /// A flow of a site begins.
    pub(super) fn open(&self, site: usize) -> FlowKey {
        let bounds = Bounds::NONE;
        self.ledger.borrow_mut().open(self.sites[site], bounds)
    }

    /// Takes note of an answer of the disk's.
    pub(crate) fn answered(&self, answered: Answered<Key>) -> Option<Reply<Key>> {
        let mut spill = self.spill.borrow_mut();
        spill.as_mut().map(|spill| answered.by(spill))
    }

    /// A record is not needed any more.
    pub(crate) fn forget(&self, spot: Spot) {
        if let Some(spill) = &mut *self.spill.borrow_mut() {
            spill.forget(spot);
        }
    }

    /// Its memory is.
    pub(super) fn reuse(&self, record: Record) {
        if let Some(spill) = &mut *self.spill.borrow_mut() {
            spill.reuse(record);
        }
    }

    /// A second has passed.
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
                "custody on disk: cannot {what}; flows wait with what they have, their hosts' windows are closed \
                 (told once a minute at most)"
            );
        }
    }
}
