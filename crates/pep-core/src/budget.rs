//! A sum of bytes that is never exceeded.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Bytes of all rings together, against `limits.memory`. Shared by all flows of a daemon.
///
/// A quarter of it is out of reach of rings that grow, so that some flows at full speed do not
/// keep new ones from beginning.
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

    /// Bytes that may be taken in all.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes taken now.
    pub fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }

    /// Takes `bytes` if that many are left. Whoever gets `true` gives them back with
    /// [`give_back`](Self::give_back).
    #[must_use]
    pub fn try_take(&self, bytes: u64) -> bool {
        self.try_take_up_to(bytes, self.limit)
    }

    /// As [`try_take`](Self::try_take), but leaves the part for new flows untouched.
    #[must_use]
    fn try_take_to_grow(&self, bytes: u64) -> bool {
        self.try_take_up_to(bytes, self.limit - self.limit / 4)
    }

    /// As [`try_take`](Self::try_take), but leaves half of it untouched.
    #[must_use]
    fn try_take_of_half(&self, bytes: u64) -> bool {
        self.try_take_up_to(bytes, self.limit / 2)
    }

    fn try_take_up_to(&self, bytes: u64, limit: u64) -> bool {
        self.taken
            .fetch_update(Relaxed, Relaxed, |taken| {
                taken.checked_add(bytes).filter(|sum| *sum <= limit)
            })
            .is_ok()
    }

    /// Takes `bytes` whatever is left.
    fn take(&self, bytes: u64) {
        self.taken.fetch_add(bytes, Relaxed);
    }

    /// Whether `bytes` could be taken now.
    pub fn has(&self, bytes: u64) -> bool {
        self.limit.saturating_sub(self.taken()) >= bytes
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
    /// None of it yet.
    pub fn none(budget: &Arc<MemoryBudget>) -> Self {
        Self {
            budget: Arc::clone(budget),
            bytes: 0,
        }
    }

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

    /// Whether it could be `bytes` larger.
    pub fn has_room(&self, bytes: u64) -> bool {
        self.budget.has(bytes)
    }

    /// Takes `bytes` more if that many are left for growing.
    #[must_use]
    pub fn try_grow(&mut self, bytes: u64) -> bool {
        let taken = self.budget.try_take_to_grow(bytes);
        self.bytes += if taken { bytes } else { 0 };
        taken
    }

    /// Takes `bytes` more while less than half of the budget is taken: for what only makes a flow
    /// faster.
    #[must_use]
    pub fn try_grow_in_plenty(&mut self, bytes: u64) -> bool {
        let taken = self.budget.try_take_of_half(bytes);
        self.bytes += if taken { bytes } else { 0 };
        taken
    }

    /// Takes `bytes` more whatever is left: for what has arrived already, which was bounded
    /// when it was allowed.
    pub fn grow(&mut self, bytes: u64) {
        self.budget.take(bytes);
        self.bytes += bytes;
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
    fn what_only_makes_faster_leaves_half() {
        let budget = Arc::new(MemoryBudget::new(10));
        let mut share = Share::none(&budget);
        assert!(share.try_grow_in_plenty(5));
        assert!(!share.try_grow_in_plenty(1));
        assert!(share.try_grow(2));
        assert_eq!((share.bytes(), budget.taken()), (7, 7));
    }

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
        assert!(share.try_grow(3));
        share.give_back(2);
        assert_eq!((share.bytes(), budget.taken()), (5, 5));
        drop(share);
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn what_has_arrived_counts_also_beyond_the_limit() {
        let budget = Arc::new(MemoryBudget::new(10));
        let mut share = Share::take(&budget, 4).unwrap();
        share.grow(20);
        assert_eq!((budget.taken(), budget.has(1)), (24, false));
        assert!(Share::take(&budget, 1).is_none() && !share.try_grow(1));
        drop(share);
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn growing_leaves_a_quarter_for_new_flows() {
        let budget = Arc::new(MemoryBudget::new(100));
        let mut share = Share::take(&budget, 10).unwrap();
        assert!(!share.try_grow(66));
        assert!(share.try_grow(65));
        assert!(!share.try_grow(1));
        assert!(budget.has(25) && !budget.has(26));
        let new = Share::take(&budget, 25).unwrap();
        assert!(Share::take(&budget, 1).is_none());
        drop(new);
        // What new flows have taken is not there for growing either.
        share.give_back(40);
        let _new = Share::take(&budget, 35).unwrap();
        assert!(share.try_grow(5) && !share.try_grow(1));
    }
}
