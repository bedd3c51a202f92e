//! Counts of held SYNs: in all, per source and per destination.

use std::{collections::HashMap, hash::Hash, net::IpAddr};

use super::FlowTuple;
use crate::hosts::Host;

/// Limit that has been reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    All,
    Source,
    Destination,
}

/// Counts of held SYNs: in all, per source and per destination.
#[derive(Debug)]
pub(super) struct Quota {
    limits: Limits,
    all: u32,
    sources: Counts<Host>,
    destinations: Counts<IpAddr>,
}

/// Maximum counts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) all: u32,
    pub(super) per_source: u32,
    pub(super) per_destination: u32,
}

impl Quota {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            all: 0,
            sources: Counts::new(),
            destinations: Counts::new(),
        }
    }

    /// Counts one more, or returns the limit that does not allow it.
    pub(super) fn add(&mut self, flow: &FlowTuple) -> Result<(), Full> {
        let (source, destination) = keys(flow);
        if self.all >= self.limits.all {
            return Err(Full::All);
        }
        if self.sources.get(&source) >= self.limits.per_source {
            return Err(Full::Source);
        }
        if self.destinations.get(&destination) >= self.limits.per_destination {
            return Err(Full::Destination);
        }
        self.all += 1;
        self.sources.add(source);
        self.destinations.add(destination);
        Ok(())
    }

    /// Counts one less.
    pub(super) fn remove(&mut self, flow: &FlowTuple) {
        let (source, destination) = keys(flow);
        self.all -= 1;
        self.sources.remove(&source);
        self.destinations.remove(&destination);
    }
}

fn keys(flow: &FlowTuple) -> (Host, IpAddr) {
    (Host::from_address(flow.client.ip()), flow.destination.ip())
}

/// Counters per key; a key with 0 takes no room.
#[derive(Debug)]
pub(crate) struct Counts<K>(HashMap<K, u32>);

impl<K: Eq + Hash> Counts<K> {
    pub(crate) fn new() -> Self {
        Self(HashMap::new())
    }

    pub(crate) fn get(&self, key: &K) -> u32 {
        self.0.get(key).copied().unwrap_or(0)
    }

    pub(crate) fn add(&mut self, key: K) {
        *self.0.entry(key).or_insert(0) += 1;
    }

    pub(crate) fn remove(&mut self, key: &K) {
        let count = self.0.get_mut(key).expect("it was added");
        *count -= 1;
        if *count == 0 {
            self.0.remove(key);
        }
    }
}
