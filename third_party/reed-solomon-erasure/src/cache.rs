//! The most recently used values, by lists of indices.

extern crate alloc;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Cache of a fixed capacity. A new key displaces the one whose last use is the earliest.
#[derive(Debug)]
pub(crate) struct Cache<V> {
    capacity: usize,
    /// Number of uses so far, which is the time of the last one.
    uses: u64,
    entries: BTreeMap<Vec<usize>, (u64, V)>,
}

impl<V: Clone> Cache<V> {
    /// Returns an empty cache for `capacity` values, 1 or more.
    pub(crate) fn new(capacity: usize) -> Self {
        Cache {
            capacity,
            uses: 0,
            entries: BTreeMap::new(),
        }
    }

    /// Returns the value of this key, which is then the most recently used one.
    pub(crate) fn get(&mut self, key: &[usize]) -> Option<V> {
        self.uses += 1;
        let (used, value) = self.entries.get_mut(key)?;
        *used = self.uses;
        Some(value.clone())
    }

    /// Stores a value, which is then the most recently used one.
    ///
    /// Looks at every key if the cache is full: a fraction of the steps that a matrix took.
    pub(crate) fn put(&mut self, key: Vec<usize>, value: V) {
        self.uses += 1;
        if self.entries.len() >= self.capacity && !self.entries.contains_key(&key) {
            let oldest = self.entries.iter().min_by_key(|(_, (used, _))| *used);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.entries.remove(&oldest);
            }
        }
        self.entries.insert(key, (self.uses, value));
    }
}
