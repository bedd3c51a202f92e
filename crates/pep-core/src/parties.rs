//! Parties: the hosts and peers among which pepd divides what it has.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Weak},
};

use crate::hosts::Host;

/// Host or peer that has a share of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    /// A peer, by the hash of its name.
    Peer(u64),
    /// A host.
    Host(Host),
}

impl Party {
    /// Returns the host that has this address.
    pub fn host(address: IpAddr) -> Self {
        Self::Host(Host::from_address(address))
    }
}

/// The parts of all parties that use theirs.
#[derive(Debug)]
pub struct Parts<T> {
    parts: BTreeMap<Party, Weak<T>>,
    /// Number at which the entries of parties without a part are removed.
    clean_at: usize,
}

impl<T> Default for Parts<T> {
    fn default() -> Self {
        Self {
            parts: BTreeMap::new(),
            clean_at: 0,
        }
    }
}

impl<T> Parts<T> {
    /// Returns the part of a party, or a `new` one if it uses none.
    pub fn of(&mut self, party: Party, new: impl FnOnce() -> T) -> Arc<T> {
        if let Some(part) = self.parts.get(&party).and_then(Weak::upgrade) {
            return part;
        }
        if self.parts.len() >= self.clean_at {
            self.parts.retain(|_, part| part.strong_count() > 0);
            self.clean_at = 2 * self.parts.len() + 16;
        }
        let part = Arc::new(new());
        self.parts.insert(party, Arc::downgrade(&part));
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parties_have_parts_of_their_own_for_as_long_as_they_use_them() {
        let mut parts = Parts::default();
        let one = parts.of(Party::Peer(1), || 1);
        assert_eq!(*parts.of(Party::Peer(1), || 2), 1);
        for number in 2..200 {
            assert_eq!(*parts.of(Party::Peer(number), || number), number);
        }
        assert!(parts.parts.len() < 50, "{}", parts.parts.len());
        drop(one);
        assert_eq!(*parts.of(Party::Peer(1), || 2), 2);
    }
}
