//! A map whose entries have deadlines.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    time::Duration,
};

/// A map whose entries have deadlines; the earliest is found in logarithmic time.
///
/// Times are since an epoch of the caller's choice.
#[derive(Debug)]
pub(crate) struct Expiring<K, V> {
    entries: HashMap<K, (Duration, V)>,
    deadlines: BTreeSet<(Duration, K)>,
}

impl<K: Copy + Ord + Hash, V> Expiring<K, V> {
    pub(crate) fn new() -> Self {
        Self {
            entries: HashMap::new(),
            deadlines: BTreeSet::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.entries.get_mut(key).map(|(_, value)| value)
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|(_, value)| value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, (_, value))| (key, value))
    }

    /// Adds an entry, or replaces one with its deadline.
    pub(crate) fn insert(&mut self, key: K, value: V, deadline: Duration) {
        if let Some((old, _)) = self.entries.insert(key, (deadline, value)) {
            self.deadlines.remove(&(old, key));
        }
        self.deadlines.insert((deadline, key));
    }

    /// Gives an entry another deadline; ignored where there is no such entry.
    pub(crate) fn renew(&mut self, key: K, deadline: Duration) {
        if let Some((old, _)) = self.entries.get_mut(&key) {
            self.deadlines.remove(&(*old, key));
            *old = deadline;
            self.deadlines.insert((deadline, key));
        }
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let (deadline, value) = self.entries.remove(key)?;
        self.deadlines.remove(&(deadline, *key));
        Some(value)
    }

    /// Removes and returns the entry that expires first.
    pub(crate) fn pop_first(&mut self) -> Option<(K, V)> {
        let (_, key) = self.deadlines.pop_first()?;
        let (_, value) = self
            .entries
            .remove(&key)
            .expect("each deadline has its entry");
        Some((key, value))
    }

    /// Removes and returns an entry whose deadline has passed.
    pub(crate) fn pop_expired(&mut self, now: Duration) -> Option<(K, V)> {
        if self.next_deadline()? <= now {
            self.pop_first()
        } else {
            None
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }
}
