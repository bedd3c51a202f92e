//! A sum of bytes that is never exceeded.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of all rings together, against `limits.memory`. Shared by all flows of a daemon.
#[derive(Debug)]
pub struct MemoryBudget {
    limit: u64,
    taken: AtomicU64,
}

impl MemoryBudget {
    /// A budget of `limit` bytes, none of them taken.
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            taken: AtomicU64::new(0),
        }
    }

    /// Bytes taken now.
    pub fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }

    /// Takes `bytes` if that many are left. Whoever gets `true` gives them back with
    /// [`give_back`](Self::give_back).
    #[must_use]
    pub fn try_take(&self, bytes: u64) -> bool {
        self.taken
            .fetch_update(Relaxed, Relaxed, |taken| {
                taken.checked_add(bytes).filter(|sum| *sum <= self.limit)
            })
            .is_ok()
    }

    /// Gives back `bytes` that were taken.
    ///
    /// # Panics
    /// When more is given back than was taken.
    pub fn give_back(&self, bytes: u64) {
        let taken = self.taken.fetch_sub(bytes, Relaxed);
        assert!(taken >= bytes, "{bytes} given back of {taken}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_up_to_the_limit_and_no_further() {
        let budget = MemoryBudget::new(10);
        assert!(budget.try_take(6));
        assert!(!budget.try_take(5));
        assert!(budget.try_take(4));
        assert_eq!(budget.taken(), 10);
        budget.give_back(6);
        assert!(budget.try_take(5));
        assert!(!budget.try_take(u64::MAX));
    }

    #[test]
    #[should_panic(expected = "given back")]
    fn gives_back_no_more_than_was_taken() {
        MemoryBudget::new(10).give_back(1);
    }
}
