//! A sum of bytes that is never exceeded.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

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

/// A part of a [`MemoryBudget`], given back when dropped.
#[derive(Debug)]
pub struct Share {
    budget: Arc<MemoryBudget>,
    bytes: u64,
}

impl Share {
    /// Takes `bytes`, or `None` when fewer are left.
    pub fn take(budget: &Arc<MemoryBudget>, bytes: u64) -> Option<Self> {
        budget.try_take(bytes).then(|| Self {
            budget: Arc::clone(budget),
            bytes,
        })
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes `bytes` more if that many are left.
    #[must_use]
    pub fn try_grow(&mut self, bytes: u64) -> bool {
        let taken = self.budget.try_take(bytes);
        self.bytes += if taken { bytes } else { 0 };
        taken
    }

    /// Gives back `bytes` of it.
    ///
    /// # Panics
    /// When it is smaller.
    pub fn give_back(&mut self, bytes: u64) {
        self.bytes = self
            .bytes
            .checked_sub(bytes)
            .expect("not more than was taken");
        self.budget.give_back(bytes);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
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

    #[test]
    fn a_share_returns_what_it_took() {
        let budget = Arc::new(MemoryBudget::new(10));
        let mut share = Share::take(&budget, 4).unwrap();
        assert!(Share::take(&budget, 7).is_none());
        assert!(share.try_grow(6));
        assert!(!share.try_grow(1));
        share.give_back(5);
        assert_eq!((share.bytes(), budget.taken()), (5, 5));
        drop(share);
        assert_eq!(budget.taken(), 0);
    }
}
