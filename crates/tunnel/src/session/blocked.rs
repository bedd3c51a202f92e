//! Streams that wait for credit of the session.
//!
//! A peer may grant a byte at a time, and each byte lets one stream send. So credit wakes no more
//! streams than it has bytes, and the work for a byte does not grow with the number of streams.

use std::collections::{BTreeMap, btree_map::Entry};

use crate::{class::Class, wire::StreamId};

/// Streams woken at once: the next ones follow before the next packet.
const WAKE_MAX: u64 = 16;

/// Waiting streams: the more urgent classes first, and then those that have waited longest.
#[derive(Debug, Default)]
pub(super) struct Blocked {
    order: BTreeMap<(Class, u64), StreamId>,
    places: BTreeMap<StreamId, (Class, u64)>,
    last: u64,
    /// Position of the session for whose credit streams have been woken.
    claimed: u64,
}

impl Blocked {
    /// Adds a stream behind those of its class, unless it waits already.
    pub fn insert(&mut self, stream: StreamId, class: Class) {
        if let Entry::Vacant(entry) = self.places.entry(stream) {
            let place = *entry.insert((class, self.last));
            self.order.insert(place, stream);
            self.last += 1;
        }
    }

    /// Removes a stream.
    pub fn remove(&mut self, stream: StreamId) {
        if let Some(place) = self.places.remove(&stream) {
            self.order.remove(&place);
        }
    }

    /// Removes a stream that is over. It may have been woken and leave credit to others.
    pub fn forget(&mut self, stream: StreamId) {
        self.remove(stream);
        self.claimed = 0;
    }

    /// Removes and returns the streams to wake, 16 at most. The session has sent bytes up to `sent`
    /// and may send up to `credit`.
    pub fn wake(&mut self, sent: u64, credit: u64) -> Vec<StreamId> {
        if self.order.is_empty() {
            return Vec::new();
        }
        let claimed = self.claimed.max(sent);
        let count = credit.saturating_sub(claimed).min(WAKE_MAX);
        let woken: Vec<_> = self.order.values().copied().take(count as usize).collect();
        woken.iter().for_each(|stream| self.remove(*stream));
        self.claimed = claimed + woken.len() as u64;
        woken
    }

    /// Returns the number of streams that wait.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.places.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_wakes_as_many_streams_as_it_has_bytes_and_urgent_ones_first() {
        let mut blocked = Blocked::default();
        for stream in 0..40 {
            let class = if stream < 38 {
                Class::Bulk
            } else {
                Class::Interactive
            };
            blocked.insert(stream, class);
            blocked.insert(stream, class);
        }
        assert!(blocked.wake(0, 0).is_empty());
        assert_eq!(blocked.wake(0, 3), [38, 39, 0]);
        assert!(blocked.wake(0, 3).is_empty(), "they have not sent yet");
        blocked.insert(0, Class::Bulk);
        assert_eq!(blocked.wake(3, 4), [1], "the last one is behind the others");
        blocked.forget(1);
        assert_eq!(blocked.wake(3, 4), [2], "its turn is free");
        blocked.remove(4);
        assert_eq!(
            blocked.wake(4, 100),
            (3..20).filter(|n| *n != 4).collect::<Vec<_>>()
        );
        assert_eq!(blocked.wake(4, 100), (20..36).collect::<Vec<_>>());
        assert_eq!(blocked.wake(4, 100), [36, 37, 0]);
        assert_eq!(blocked.len(), 0);
    }
}
