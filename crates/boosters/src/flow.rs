//! Bounded state per connection, with LRU replacement.

use std::collections::BTreeMap;

use crate::ip::FlowKey;

/// State of the last connections. All calls take time logarithmic in their number.
#[derive(Clone, Debug)]
pub struct Flows<V> {
    max: usize,
    entries: BTreeMap<FlowKey, (V, u64)>,
    /// By last use.
    order: BTreeMap<u64, FlowKey>,
    clock: u64,
    evicted: u64,
}

impl<V> Flows<V> {
    /// Creates a map of up to `max` connections.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self {
            max: max.max(1),
            entries: BTreeMap::new(),
            order: BTreeMap::new(),
            clock: 0,
            evicted: 0,
        }
    }

    /// Returns the state of a connection; counts as use.
    pub fn get(&mut self, key: &FlowKey) -> Option<&mut V> {
        self.touch(key);
        self.entries.get_mut(key).map(|(value, _)| value)
    }

    /// Returns the state of a connection; does not count as use.
    #[must_use]
    pub fn peek(&self, key: &FlowKey) -> Option<&V> {
        self.entries.get(key).map(|(value, _)| value)
    }

    /// Returns the state of a connection, created on first use. If there are too many, the LRU one
    /// is removed and returned.
    pub fn entry(
        &mut self,
        key: FlowKey,
        new: impl FnOnce() -> V,
    ) -> (&mut V, Option<(FlowKey, V)>) {
        let mut gone = None;
        if self.entries.contains_key(&key) {
            self.touch(&key);
        } else {
            if self.entries.len() >= self.max
                && let Some((_, oldest)) = self.order.pop_first()
                && let Some((value, _)) = self.entries.remove(&oldest)
            {
                self.evicted += 1;
                gone = Some((oldest, value));
            }
            self.clock += 1;
            self.order.insert(self.clock, key);
        }
        let clock = self.clock;
        let (value, _) = self.entries.entry(key).or_insert_with(|| (new(), clock));
        (value, gone)
    }

    /// Removes a connection.
    pub fn remove(&mut self, key: &FlowKey) -> Option<V> {
        let (value, stamp) = self.entries.remove(key)?;
        self.order.remove(&stamp);
        Some(value)
    }

    /// Removes all connections.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.order.clear();
    }

    /// Returns the LRU connection.
    #[must_use]
    pub fn oldest(&self) -> Option<FlowKey> {
        self.order.first_key_value().map(|(_, key)| *key)
    }

    /// Returns the number of connections.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there is no connection.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the number of connections replaced by others.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    fn touch(&mut self, key: &FlowKey) {
        if let Some((_, stamp)) = self.entries.get_mut(key) {
            self.clock += 1;
            self.order.remove(stamp);
            *stamp = self.clock;
            self.order.insert(self.clock, *key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn key(port: u16) -> FlowKey {
        let address = Ipv4Addr::LOCALHOST.into();
        FlowKey {
            from: (address, port),
            to: (address, 80),
            protocol: 6,
        }
    }

    #[test]
    fn the_lru_entry_is_replaced() {
        let mut flows = Flows::new(2);
        assert!(flows.entry(key(1), || 1).1.is_none());
        assert!(flows.entry(key(2), || 2).1.is_none());
        assert_eq!(flows.get(&key(1)), Some(&mut 1));
        assert_eq!(flows.entry(key(3), || 3).1, Some((key(2), 2)));
        assert_eq!((flows.len(), flows.evicted()), (2, 1));
        assert_eq!(flows.remove(&key(1)), Some(1));
        assert_eq!(flows.oldest(), Some(key(3)));
        assert_eq!((flows.order.len(), flows.entries.len()), (1, 1));
    }
}
