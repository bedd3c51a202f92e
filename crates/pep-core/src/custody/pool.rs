//! Pool of bytes that several flows take from, a site's or that of all, with the share of each peer
//! and host.
//!
//! Ledgers of several threads may share a pool's bounds, held bytes and number of peers and hosts,
//! without a lock. But each ledger counts the bytes of its peers and hosts by itself.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use super::{Bounds, HOST_SHARE, PEER_SHARE, Place, SHARE};
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

/// Peer and host of a flow.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owner {
    pub(super) peer: usize,
    pub(super) host: Option<Host>,
}

/// Sums of a pool over all ledgers that take from it.
#[derive(Debug)]
struct Total {
    most: [u64; 2],
    held: [AtomicU64; 2],
    /// Hosts with flows. A host with flows in several ledgers is counted in each.
    hosts: AtomicUsize,
    /// Peers with flows. Each has all of them in one ledger.
    peers: AtomicUsize,
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
    hosts: Members<Host>,
    /// Peers with flows of this ledger.
    peers: Members<usize>,
}

/// The hosts, or peers, with flows, and what those hold.
#[derive(Debug)]
struct Members<K>(HashMap<K, Member>);

#[derive(Debug)]
struct Member {
    flows: usize,
    account: Account,
}

impl<K: Copy + Eq + Hash> Members<K> {
    /// Adds a flow, with its held bytes. Returns whether it is the first.
    fn join(&mut self, of: K, held: [u64; 2]) -> bool {
        let new = || Member {
            flows: 0,
            account: Account::new(Bounds::NONE),
        };
        let member = self.0.entry(of).or_insert_with(new);
        member.flows += 1;
        for place in Place::ALL {
            member.account.take(place, held[place as usize]);
        }
        member.flows == 1
    }

    /// Removes a flow, which holds nothing. Returns whether it was the last.
    fn leave(&mut self, of: K) -> bool {
        let member = self.0.get_mut(&of).expect("the flow has joined");
        member.flows -= 1;
        let is_last = member.flows == 0;
        if is_last {
            self.0.remove(&of);
        }
        is_last
    }

    fn account(&mut self, of: K) -> Option<&mut Account> {
        Some(&mut self.0.get_mut(&of)?.account)
    }

    fn held(&self, of: K, place: Place) -> Option<u64> {
        Some(self.0.get(&of)?.account.held[place as usize])
    }
}

impl Pool {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self::with_total(Arc::new(Total {
            most: bounds.by_place(),
            held: Default::default(),
            hosts: AtomicUsize::new(0),
            peers: AtomicUsize::new(0),
        }))
    }

    /// Returns the pool of another ledger with the bounds and sums of this one.
    pub(super) fn sharing(&self) -> Self {
        Self::with_total(Arc::clone(&self.total))
    }

    fn with_total(total: Arc<Total>) -> Self {
        Self {
            total,
            hosts: Members(HashMap::new()),
            peers: Members(HashMap::new()),
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

    /// Adds a flow of a peer, which holds nothing.
    pub(super) fn open(&mut self, peer: usize) {
        let is_first = self.peers.join(peer, [0; 2]);
        self.total.peers.fetch_add(is_first.into(), Relaxed);
    }

    /// Assigns a flow to a host, with its held bytes.
    pub(super) fn join(&mut self, host: Host, held: [u64; 2]) {
        let is_first = self.hosts.join(host, held);
        self.total.hosts.fetch_add(is_first.into(), Relaxed);
    }

    /// Removes a flow, which holds nothing.
    pub(super) fn close(&mut self, owner: Owner) {
        let is_last = self.peers.leave(owner.peer);
        self.total.peers.fetch_sub(is_last.into(), Relaxed);
        let is_last = owner.host.is_some_and(|host| self.hosts.leave(host));
        self.total.hosts.fetch_sub(is_last.into(), Relaxed);
    }

    /// Takes `bytes` for a flow of `owner` that holds `held`, if it may take `wanted`.
    ///
    /// Check and take are one step: other ledgers take at the same time.
    #[must_use]
    pub(super) fn try_take(
        &mut self,
        owner: Owner,
        place: Place,
        held: u64,
        (wanted, bytes): (u64, u64),
    ) -> bool {
        let of_all = &self.total.held[place as usize];
        let taken = of_all.fetch_update(Relaxed, Relaxed, |all| {
            let left = self.total.left(place, all);
            let fits = self.fits_into(left, owner, place, held, wanted);
            fits.then(|| all + bytes)
        });
        if taken.is_ok() {
            self.accounts(owner)
                .for_each(|account| account.take(place, bytes));
        }
        taken.is_ok()
    }

    pub(super) fn take(&mut self, owner: Owner, place: Place, bytes: u64) {
        self.total.held[place as usize].fetch_add(bytes, Relaxed);
        self.accounts(owner)
            .for_each(|account| account.take(place, bytes));
    }

    /// # Panics
    /// When less is held.
    pub(super) fn give_back(&mut self, owner: Owner, place: Place, bytes: u64) {
        let held = self.total.held[place as usize].fetch_sub(bytes, Relaxed);
        assert!(held >= bytes, "{bytes} returned of {held}");
        self.accounts(owner)
            .for_each(|account| account.give_back(place, bytes));
    }

    /// Returns the accounts of a flow's peer and host.
    fn accounts(&mut self, owner: Owner) -> impl Iterator<Item = &mut Account> {
        let of_host = owner.host.and_then(|host| self.hosts.account(host));
        let of_peer = self.peers.account(owner.peer);
        of_peer.into_iter().chain(of_host)
    }

    /// Reports whether a flow of `owner` that holds `held` bytes may take `bytes` more.
    pub(super) fn fits(&self, owner: Owner, place: Place, held: u64, bytes: u64) -> bool {
        let left = self.left(place);
        self.fits_into(left, owner, place, held, bytes)
    }

    /// Reports the same for a pool with `left` bytes left.
    fn fits_into(&self, left: u64, owner: Owner, place: Place, held: u64, bytes: u64) -> bool {
        let Some(mut left) = left.checked_sub(bytes) else {
            return false;
        };
        for (of_level, share) in self.levels(owner, place).into_iter().flatten() {
            let room = left.saturating_mul(share);
            let Some(room) = room.checked_sub(of_level.saturating_add(bytes)) else {
                return false;
            };
            left = room;
        }
        held.saturating_add(bytes) <= left.saturating_mul(SHARE)
    }

    /// Bytes by which a flow of `owner` that holds `held` exceeds its share, or by which its host
    /// or its peer exceeds theirs.
    pub(super) fn surplus(&self, owner: Owner, place: Place, held: u64) -> u64 {
        // With a byte of the flow fewer, there are so many bytes more left to it.
        let (mut left, mut slope) = (i128::from(self.left(place)), 1);
        for (of_level, share) in self.levels(owner, place).into_iter().flatten() {
            left = i128::from(share) * left - i128::from(of_level);
            slope = i128::from(share) * slope + 1;
        }
        let beyond = i128::from(held) - i128::from(SHARE) * left;
        let surplus = div_ceil(beyond, 1 + i128::from(SHARE) * slope);
        u64::try_from(surplus).unwrap_or(0).min(held)
    }

    /// Bytes held by a peer's flows, and by a host's of this ledger, and their maximum as a
    /// multiple of what is left to them. A peer without others has no maximum.
    fn levels(&self, owner: Owner, place: Place) -> [Option<(u64, u64)>; 2] {
        let of_peer = self.peers.held(owner.peer, place);
        let crowded = self.total.peers.load(Relaxed) > 1;
        let peer = of_peer.filter(|_| crowded).map(|held| (held, PEER_SHARE));
        let share = match self.total.hosts.load(Relaxed) {
            1 => SHARE,
            _ => HOST_SHARE,
        };
        let of_host = owner.host.and_then(|host| self.hosts.held(host, place));
        [peer, of_host.map(|held| (held, share))]
    }
}

/// The quotient, rounded up.
fn div_ceil(number: i128, by: i128) -> i128 {
    number.div_euclid(by) + i128::from(number.rem_euclid(by) > 0)
}
