//! A sum of bytes that is never exceeded.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Bytes of all rings together, limited by `limits.memory`. Shared by all flows of a daemon.
///
/// Growing rings cannot use the last quarter, so that flows at full speed do not keep new flows
/// from starting. Nor can one party's new flows take all of it: a party leaves at least as much as
/// its flows began with.
#[derive(Debug)]
pub struct MemoryBudget {
    limit: u64,
    taken: AtomicU64,
}

impl MemoryBudget {
    /// Returns a budget of `limit` bytes, all free.
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            taken: AtomicU64::new(0),
        }
    }

    /// Maximum number of bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes in use.
    pub fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }

    /// Takes `bytes` if that many are left. A caller that gets `true` returns them with
    /// [`give_back`](Self::give_back).
    #[must_use]
    pub fn try_take(&self, bytes: u64) -> bool {
        self.try_take_up_to(bytes, self.limit)
    }

    /// As [`try_take`](Self::try_take), for a party that has taken `had` bytes for its flows.
    /// Beyond three quarters of the budget it leaves as many as it then has to the flows of others.
    #[must_use]
    fn try_take_beside(&self, bytes: u64, had: u64) -> bool {
        let most = self.limit.saturating_sub(had.saturating_add(bytes));
        self.try_take_up_to(bytes, most.max(self.limit - self.limit / 4))
    }

    /// As [`try_take`](Self::try_take), but leaves the part for new flows untouched.
    #[must_use]
    fn try_take_to_grow(&self, bytes: u64) -> bool {
        self.try_take_up_to(bytes, self.limit - self.limit / 4)
    }

    /// As [`try_take`](Self::try_take), but leaves half of the budget untouched.
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

    /// Takes `bytes` even beyond the limit.
    fn take(&self, bytes: u64) {
        self.taken.fetch_add(bytes, Relaxed);
    }

    /// Reports whether `bytes` could be taken now.
    pub fn has(&self, bytes: u64) -> bool {
        self.limit.saturating_sub(self.taken()) >= bytes
    }

    /// Returns `bytes` that were taken.
    ///
    /// # Panics
    /// When more is returned than was taken.
    pub fn give_back(&self, bytes: u64) {
        let taken = self.taken.fetch_sub(bytes, Relaxed);
        assert!(taken >= bytes, "{bytes} returned of {taken}");
    }
}

/// A part of a [`MemoryBudget`], returned when dropped.
#[derive(Debug)]
pub struct Share {
    budget: Arc<MemoryBudget>,
    bytes: u64,
}

impl Share {
    /// An empty share.
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

    /// As [`take`](Self::take), for a party that has taken `had` bytes for its other flows. `None`
    /// also when little is left, and the party would have more than it leaves.
    pub fn take_beside(budget: &Arc<MemoryBudget>, bytes: u64, had: u64) -> Option<Self> {
        budget.try_take_beside(bytes, had).then(|| Self {
            budget: Arc::clone(budget),
            bytes,
        })
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reports whether the share could grow by `bytes`.
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

    /// Takes `bytes` more while less than half of the budget is in use. For buffers that only make
    /// a flow faster.
    #[must_use]
    pub fn try_grow_in_plenty(&mut self, bytes: u64) -> bool {
        let taken = self.budget.try_take_of_half(bytes);
        self.bytes += if taken { bytes } else { 0 };
        taken
    }

    /// Takes `bytes` more even beyond the limit. For data that has arrived already, and was bounded
    /// when pepd advertised room for it.
    pub fn grow(&mut self, bytes: u64) {
        self.budget.take(bytes);
        self.bytes += bytes;
    }

    /// Returns `bytes` of the share.
    ///
    /// # Panics
    /// When the share is smaller.
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
    fn new_flows_of_one_party_leave_as_much_as_they_have_to_those_of_others() {
        let budget = Arc::new(MemoryBudget::new(1000));
        let opened = |bytes| {
            let mut flows = Vec::new();
            let mut had = 0;
            while let Some(flow) = Share::take_beside(&budget, bytes, had) {
                had += bytes;
                flows.push(flow);
            }
            flows
        };
        let mut grown = Share::none(&budget);
        assert!(grown.try_grow(750));
        let first = opened(5);
        assert_eq!(first.len(), 25, "half of the last quarter");
        let second = opened(5);
        assert_eq!(second.len(), 12, "half of the rest");
        drop((first, second));
        grown.give_back(750);
        assert_eq!(
            opened(5).len(),
            150,
            "three quarters, where no ring has grown"
        );
    }

    #[test]
    #[should_panic(expected = "returned of")]
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
        // Bytes taken by new flows are not available for growth either.
        share.give_back(40);
        let _new = Share::take(&budget, 35).unwrap();
        assert!(share.try_grow(5) && !share.try_grow(1));
    }
}
