//! Pool of bytes that several flows take from, a site's or that of all, with the share of each
//! host.
//!
//! Ledgers of several threads may share a pool's bounds, held bytes and number of hosts, without a
//! lock. But each ledger counts the bytes of its hosts by itself.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use super::{Bounds, HOST_SHARE, Place, SHARE};
use crate::hosts::Host;

/// Held bytes and bounds, by place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Account {
    most: [u64; 2],
    held: [u64; 2],
}

impl Account {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            most: bounds.by_place(),
            held: [0; 2],
        }
    }

    pub(super) fn held(&self) -> [u64; 2] {
        self.held
    }

    pub(super) fn most(&self, place: Place) -> u64 {
        self.most[place as usize]
    }

    pub(super) fn left(&self, place: Place) -> u64 {
        self.most(place).saturating_sub(self.held[place as usize])
    }

    pub(super) fn take(&mut self, place: Place, bytes: u64) {
        self.held[place as usize] += bytes;
    }

    /// # Panics
    /// When less is held.
    pub(super) fn give_back(&mut self, place: Place, bytes: u64) {
        let held = &mut self.held[place as usize];
        *held = held.checked_sub(bytes).expect("not more than was taken");
    }
}

/// Sums of a pool over all ledgers that take from it.
#[derive(Debug)]
struct Total {
    most: [u64; 2],
    held: [AtomicU64; 2],
    /// Hosts with flows. A host with flows in several ledgers is counted in each.
    hosts: AtomicUsize,
}

impl Total {
    fn left(&self, place: Place, held: u64) -> u64 {
        self.most[place as usize].saturating_sub(held)
    }
}

/// Pool of bytes that several flows take from.
#[derive(Debug)]
pub(super) struct Pool {
    total: Arc<Total>,
    /// Hosts with flows of this ledger.
    hosts: HashMap<Host, HostAccount>,
}

#[derive(Debug)]
struct HostAccount {
    flows: usize,
    account: Account,
}

impl Pool {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            total: Arc::new(Total {
                most: bounds.by_place(),
                held: Default::default(),
                hosts: AtomicUsize::new(0),
            }),
            hosts: HashMap::new(),
        }
    }

    /// Returns the pool of another ledger with the bounds and sums of this one.
    pub(super) fn sharing(&self) -> Self {
        Self {
            total: Arc::clone(&self.total),
            hosts: HashMap::new(),
        }
    }

    /// Bytes held by the flows of all ledgers.
    pub(super) fn held(&self, place: Place) -> u64 {
        self.total.held[place as usize].load(Relaxed)
    }

    pub(super) fn most(&self, place: Place) -> u64 {
        self.total.most[place as usize]
    }

    fn left(&self, place: Place) -> u64 {
        self.total.left(place, self.held(place))
    }

    /// Adds a flow of a host, with its held bytes.
    pub(super) fn join(&mut self, host: Host, held: [u64; 2]) {
        let new = || {
            self.total.hosts.fetch_add(1, Relaxed);
            HostAccount {
                flows: 0,
                account: Account::new(Bounds::NONE),
            }
        };
        let of_host = self.hosts.entry(host).or_insert_with(new);
        of_host.flows += 1;
        for place in Place::ALL {
            of_host.account.take(place, held[place as usize]);
        }
    }

    /// Removes a flow of a host, which holds nothing.
    pub(super) fn leave(&mut self, host: Host) {
        let of_host = self.hosts.get_mut(&host).expect("the host has joined");
        of_host.flows -= 1;
        if of_host.flows == 0 {
            self.hosts.remove(&host);
            self.total.hosts.fetch_sub(1, Relaxed);
        }
    }

    /// Takes `bytes` for a flow of `host` that holds `held`, if it may take `wanted`.
    ///
    /// Check and take are one step: other ledgers take at the same time.
    #[must_use]
    pub(super) fn try_take(
        &mut self,
        host: Option<Host>,
        place: Place,
        held: u64,
        (wanted, bytes): (u64, u64),
    ) -> bool {
        let of_all = &self.total.held[place as usize];
        let taken = of_all.fetch_update(Relaxed, Relaxed, |all| {
            let left = self.total.left(place, all);
            let fits = self.fits_into(left, host, place, held, wanted);
            fits.then(|| all + bytes)
        });
        if let (Ok(_), Some(of_host)) = (taken, self.account_of(host)) {
            of_host.take(place, bytes);
        }
        taken.is_ok()
    }

    pub(super) fn take(&mut self, host: Option<Host>, place: Place, bytes: u64) {
        self.total.held[place as usize].fetch_add(bytes, Relaxed);
        if let Some(of_host) = self.account_of(host) {
            of_host.take(place, bytes);
        }
    }

    /// # Panics
    /// When less is held.
    pub(super) fn give_back(&mut self, host: Option<Host>, place: Place, bytes: u64) {
        let held = self.total.held[place as usize].fetch_sub(bytes, Relaxed);
        assert!(held >= bytes, "{bytes} returned of {held}");
        if let Some(of_host) = self.account_of(host) {
            of_host.give_back(place, bytes);
        }
    }

    fn account_of(&mut self, host: Option<Host>) -> Option<&mut Account> {
        Some(&mut self.hosts.get_mut(&host?)?.account)
    }

    /// Reports whether a flow of `host` that holds `held` bytes may take `bytes` more.
    pub(super) fn fits(&self, host: Option<Host>, place: Place, held: u64, bytes: u64) -> bool {
        let left = self.left(place);
        self.fits_into(left, host, place, held, bytes)
    }

    /// Reports the same for a pool with `left` bytes left.
    fn fits_into(
        &self,
        left: u64,
        host: Option<Host>,
        place: Place,
        held: u64,
        bytes: u64,
    ) -> bool {
        let Some(left) = left.checked_sub(bytes) else {
            return false;
        };
        let held = held.saturating_add(bytes);
        let Some((of_host, share)) = self.part(host, place) else {
            return held <= left.saturating_mul(SHARE);
        };
        let room = left.saturating_mul(share);
        let room = room.checked_sub(of_host.saturating_add(bytes));
        room.is_some_and(|room| held <= room.saturating_mul(SHARE))
    }

    /// Bytes by which a flow of `host` that holds `held` exceeds its share, or its host the host's
    /// share.
    pub(super) fn surplus(&self, host: Option<Host>, place: Place, held: u64) -> u64 {
        let left = i128::from(self.left(place));
        let flow_share = i128::from(SHARE);
        let too_much = match self.part(host, place) {
            // With r bytes fewer there are r more left, and its share is SHARE * r larger.
            None => div_ceil(i128::from(held) - flow_share * left, 1 + flow_share),
            // The host's share is then share * r larger, and r less of that is free.
            Some((of_host, share)) => {
                let share = i128::from(share);
                let room = share * left - i128::from(of_host);
                let beyond = i128::from(held) - flow_share * room;
                div_ceil(beyond, 1 + flow_share * (share + 1))
            }
        };
        u64::try_from(too_much).unwrap_or(0).min(held)
    }

    /// Bytes held by a host's flows of this ledger, and their maximum as a multiple of what is
    /// left.
    fn part(&self, host: Option<Host>, place: Place) -> Option<(u64, u64)> {
        let of_host = self.hosts.get(&host?)?;
        let share = match self.total.hosts.load(Relaxed) {
            1 => SHARE,
            _ => HOST_SHARE,
        };
        Some((of_host.account.held[place as usize], share))
    }
}

/// The quotient, rounded up.
fn div_ceil(number: i128, by: i128) -> i128 {
    number.div_euclid(by) + i128::from(number.rem_euclid(by) > 0)
}
