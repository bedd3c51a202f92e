//! Pool of bytes that several flows take from, a site's or that of all, with the share of each
//! host.

use std::collections::HashMap;

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

/// Pool of bytes that several flows take from.
#[derive(Debug)]
pub(super) struct Pool {
    account: Account,
    /// Hosts with flows.
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
            account: Account::new(bounds),
            hosts: HashMap::new(),
        }
    }

    pub(super) fn held(&self, place: Place) -> u64 {
        self.account.held[place as usize]
    }

    pub(super) fn most(&self, place: Place) -> u64 {
        self.account.most(place)
    }

    /// Adds a flow of a host, with its held bytes.
    pub(super) fn join(&mut self, host: Host, held: [u64; 2]) {
        let new = || HostAccount {
            flows: 0,
            account: Account::new(Bounds::NONE),
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
        }
    }

    pub(super) fn take(&mut self, host: Option<Host>, place: Place, bytes: u64) {
        self.account.take(place, bytes);
        if let Some(of_host) = self.account_of(host) {
            of_host.take(place, bytes);
        }
    }

    /// # Panics
    /// When less is held.
    pub(super) fn give_back(&mut self, host: Option<Host>, place: Place, bytes: u64) {
        self.account.give_back(place, bytes);
        if let Some(of_host) = self.account_of(host) {
            of_host.give_back(place, bytes);
        }
    }

    fn account_of(&mut self, host: Option<Host>) -> Option<&mut Account> {
        Some(&mut self.hosts.get_mut(&host?)?.account)
    }

    /// Reports whether a flow of `host` that holds `held` bytes may take `bytes` more.
    pub(super) fn fits(&self, host: Option<Host>, place: Place, held: u64, bytes: u64) -> bool {
        let Some(left) = self.account.left(place).checked_sub(bytes) else {
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
        let (left, flow_share) = (i128::from(self.account.left(place)), i128::from(SHARE));
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

    /// Bytes held by a host, and its maximum as a multiple of what is left.
    fn part(&self, host: Option<Host>, place: Place) -> Option<(u64, u64)> {
        let of_host = self.hosts.get(&host?)?;
        let share = match self.hosts.len() {
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
