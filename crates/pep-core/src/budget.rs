//! A sum of bytes that is never exceeded, and the parts that parties have of it.
//!
//! ```text
//!   |== initial rings ==|== growth ==|-- left to others --|-- small growth --|-- new flows --|
//!   0                                                    3/4                7/8              1
//! ```
//!
//! What a ring has grown by stays taken until its receiver reads, or its peer acknowledges. So a
//! party (host, peer) may grow its rings by [`BESIDE`] times what it leaves, by however many flows:
//! two thirds of the three quarters. Where no other party has flows, it may grow them by [`ALONE`]
//! times as much: eight ninths. These are dynamic thresholds (Choudhury and Hahne, "Dynamic queue
//! length thresholds for shared-memory packet switches", IEEE/ACM Transactions on Networking,
//! 1998).
//!
//! A party that has grown as far as it may can still fill the three quarters by new flows. So a
//! party that has grown by less than it leaves may use an eighth more.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Maximum that a party beside others may grow by, as a multiple of what it leaves.
pub const BESIDE: u64 = 2;

/// Maximum that a party without others may grow by, as a multiple of what it leaves.
pub const ALONE: u64 = 8;

/// Bytes of all rings together, limited by `limits.memory`. Shared by all flows of a daemon.
///
/// Growing rings cannot use the last quarter, so that flows at full speed do not keep new flows
/// from starting. Nor can one party's new flows take all of it: a party leaves at least as much as
/// its flows began with.
#[derive(Debug)]
pub struct MemoryBudget {
    limit: u64,
    taken: AtomicU64,
    /// Parties with flows.
    parties: AtomicU64,
}

impl MemoryBudget {
    /// Returns a budget of `limit` bytes, all free.
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            taken: AtomicU64::new(0),
            parties: AtomicU64::new(0),
        }
    }

    /// Returns the maximum by which a party without others grows in a budget of `limit` bytes.
    pub fn most_alone(limit: u64) -> u64 {
        for_growing(limit) / (ALONE + 1) * ALONE
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
        self.try_take_up_to(bytes, most.max(for_growing(self.limit)))
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

/// Returns the part of a budget that is not reserved for new flows.
fn for_growing(limit: u64) -> u64 {
    limit - limit / 4
}

/// Growth of the rings of one party (host, peer).
#[derive(Debug)]
pub struct MemoryPart {
    budget: Arc<MemoryBudget>,
    flows: AtomicU64,
    grown: AtomicU64,
}

impl MemoryPart {
    /// Returns the part of a party without flows.
    pub fn new(budget: &Arc<MemoryBudget>) -> Self {
        Self {
            budget: Arc::clone(budget),
            flows: AtomicU64::new(0),
            grown: AtomicU64::new(0),
        }
    }

    /// Bytes that the party has taken to grow.
    pub fn grown(&self) -> u64 {
        self.grown.load(Relaxed)
    }

    fn begin(&self) {
        if self.flows.fetch_add(1, Relaxed) == 0 {
            self.budget.parties.fetch_add(1, Relaxed);
        }
    }

    fn end(&self) {
        if self.flows.fetch_sub(1, Relaxed) == 1 {
            self.budget.parties.fetch_sub(1, Relaxed);
        }
    }

    /// Returns the bytes that the party leaves to others when it has grown by so many more.
    fn leaves(&self, bytes: u64) -> u64 {
        let others = self.budget.parties.load(Relaxed);
        let others = others.saturating_sub(self.flows.load(Relaxed).min(1));
        let multiple = if others > 0 { BESIDE } else { ALONE };
        self.grown().saturating_add(bytes).div_ceil(multiple)
    }

    /// Returns the bytes taken by all with which the party may yet grow by so many.
    fn most(&self, bytes: u64) -> u64 {
        let limit = self.budget.limit;
        let fair = for_growing(limit).saturating_sub(self.leaves(bytes));
        let has = self.grown().saturating_add(bytes);
        let little = (limit - limit / 8).saturating_sub(has);
        fair.max(little)
    }
}

/// Bytes taken from a [`MemoryBudget`], returned when dropped.
#[derive(Debug)]
pub struct Share {
    budget: Arc<MemoryBudget>,
    bytes: u64,
    /// Bytes that do not count as grown.
    initial: u64,
    part: Option<Arc<MemoryPart>>,
    /// True for a share of a flow that belongs to a party.
    is_flow: bool,
}

impl Share {
    /// An empty share.
    pub fn none(budget: &Arc<MemoryBudget>) -> Self {
        Self::taken(budget, 0)
    }

    /// An empty share of a party, for bytes that are not a flow's.
    pub fn none_of(part: &Arc<MemoryPart>) -> Self {
        let mut share = Self::none(&part.budget);
        share.part = Some(Arc::clone(part));
        share
    }

    /// Takes `bytes`, or `None` when fewer are left.
    pub fn take(budget: &Arc<MemoryBudget>, bytes: u64) -> Option<Self> {
        let taken = budget.try_take(bytes);
        taken.then(|| Self::taken(budget, bytes))
    }

    /// As [`take`](Self::take), for a party that has taken `had` bytes for its other flows. `None`
    /// also when little is left, and the party would have more than it leaves.
    pub fn take_beside(budget: &Arc<MemoryBudget>, bytes: u64, had: u64) -> Option<Self> {
        let taken = budget.try_take_beside(bytes, had);
        taken.then(|| Self::taken(budget, bytes))
    }

    fn taken(budget: &Arc<MemoryBudget>, bytes: u64) -> Self {
        Self {
            budget: Arc::clone(budget),
            bytes,
            initial: 0,
            part: None,
            is_flow: false,
        }
    }

    /// Makes this the share of a flow of a party. What it has beyond `initial` bytes counts as
    /// grown, even beyond the part. To be called once.
    pub fn belong(&mut self, part: &Arc<MemoryPart>, initial: u64) {
        debug_assert!(self.part.is_none(), "belong() called twice");
        part.begin();
        (self.is_flow, self.initial) = (true, initial);
        part.grown.fetch_add(self.grown(), Relaxed);
        self.part = Some(Arc::clone(part));
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn grown(&self) -> u64 {
        self.bytes.saturating_sub(self.initial)
    }

    /// Reports whether the share could grow by `bytes`.
    pub fn has_room(&self, bytes: u64) -> bool {
        self.budget.has(bytes)
    }

    /// Takes `bytes` more if that many are left for growing, and to the share's party.
    #[must_use]
    pub fn try_grow(&mut self, bytes: u64) -> bool {
        let most = match &self.part {
            Some(part) => part.most(bytes),
            None => for_growing(self.budget.limit),
        };
        self.try_grow_up_to(most, bytes)
    }

    /// Takes `bytes` more while less than half of the budget is in use, of which the share's party
    /// leaves a part to others. For buffers that only make a flow faster.
    #[must_use]
    pub fn try_grow_in_plenty(&mut self, bytes: u64) -> bool {
        let others = self.part.as_ref().map_or(0, |part| part.leaves(bytes));
        let most = (self.budget.limit / 2).saturating_sub(others);
        self.try_grow_up_to(most, bytes)
    }

    fn try_grow_up_to(&mut self, most: u64, bytes: u64) -> bool {
        let taken = self.budget.try_take_up_to(bytes, most);
        if taken {
            self.set(self.bytes + bytes);
        }
        taken
    }

    /// Takes `bytes` more even beyond the limit. For data that has arrived already, and was bounded
    /// when pepd advertised room for it.
    pub fn grow(&mut self, bytes: u64) {
        self.budget.take(bytes);
        self.set(self.bytes + bytes);
    }

    /// Returns `bytes` of the share.
    ///
    /// # Panics
    /// When the share is smaller.
    pub fn give_back(&mut self, bytes: u64) {
        let left = self.bytes.checked_sub(bytes);
        self.set(left.expect("not more than was taken"));
        self.budget.give_back(bytes);
    }

    fn set(&mut self, bytes: u64) {
        let before = self.grown();
        self.bytes = bytes;
        if let Some(part) = &self.part {
            // Sums wrap, so that a difference may be negative.
            let more = self.grown().wrapping_sub(before);
            part.grown.fetch_add(more, Relaxed);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_back(self.bytes);
        if let Some(part) = self.part.take().filter(|_| self.is_flow) {
            part.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

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

    const LIMIT: u64 = 1200;

    /// A flow of a party that has taken ten bytes.
    fn flow(part: &Arc<MemoryPart>) -> Share {
        let mut share = Share::take(&part.budget, 10).expect("room for a new flow");
        share.belong(part, 10);
        share
    }

    /// Grows shares in turn, until none gets any more.
    fn contend(shares: &mut [Share]) {
        while shares
            .iter_mut()
            .filter_map(|share| share.try_grow(1).then_some(()))
            .count()
            > 0
        {}
    }

    #[test]
    fn a_party_alone_leaves_a_ninth_and_one_beside_others_a_third() {
        for (others, expected) in [(0, LIMIT * 2 / 3), (1, LIMIT / 2)] {
            let budget = Arc::new(MemoryBudget::new(LIMIT));
            let part = Arc::new(MemoryPart::new(&budget));
            let other = Arc::new(MemoryPart::new(&budget));
            let _others: Vec<_> = (0..others).map(|_| flow(&other)).collect();
            let mut flows: Vec<_> = (0..5).map(|_| flow(&part)).collect();
            contend(&mut flows);
            // Initial bytes of all are not for growing either.
            let held = part.grown();
            assert!(
                (expected - 60..=expected).contains(&held),
                "{held} of {expected}"
            );
            let mut late = flow(&other);
            contend(std::slice::from_mut(&mut late));
            assert!(other.grown() >= 50, "{}", other.grown());
            drop((flows, late));
            assert_eq!((part.grown(), other.grown()), (0, 0));
        }
        assert_eq!(MemoryBudget::most_alone(LIMIT), LIMIT * 2 / 3);
    }

    #[test]
    fn who_has_little_grows_although_flows_of_others_fill_the_three_quarters() {
        let budget = Arc::new(MemoryBudget::new(LIMIT));
        let [hoarder, other] = [(); 2].map(|()| Arc::new(MemoryPart::new(&budget)));
        let mut late = flow(&other);
        let mut flows = vec![flow(&hoarder)];
        contend(&mut flows);
        while let Some(mut share) = Share::take_beside(&budget, 10, flows.len() as u64 * 10) {
            share.belong(&hoarder, 10);
            flows.push(share);
            contend(&mut flows);
        }
        assert!(hoarder.grown() <= LIMIT / 2 && budget.taken() > LIMIT * 7 / 10);
        contend(std::slice::from_mut(&mut late));
        assert!(other.grown() >= LIMIT / 20, "{}", other.grown());
        assert!(Share::take_beside(&budget, 10, 10).is_some());
    }

    #[test]
    fn who_has_no_flows_is_no_other_party() {
        let budget = Arc::new(MemoryBudget::new(LIMIT));
        let [part, other] = [(); 2].map(|()| Arc::new(MemoryPart::new(&budget)));
        let lent = Share::none_of(&other);
        let ended = flow(&other);
        let mut one = flow(&part);
        drop(ended);
        contend(std::slice::from_mut(&mut one));
        assert!(part.grown() > LIMIT / 2, "{}", part.grown());
        // Bytes that are not a flow's count as well.
        let mut lent_to_it = Share::none_of(&part);
        assert!(!lent_to_it.try_grow(1));
        one.give_back(200);
        assert!(lent_to_it.try_grow(200) && !lent_to_it.try_grow(2));
        drop(lent);
    }

    #[test]
    fn what_only_makes_faster_leaves_a_part_of_half_to_other_parties() {
        let budget = Arc::new(MemoryBudget::new(LIMIT));
        let [part, other] = [(); 2].map(|()| Arc::new(MemoryPart::new(&budget)));
        let (_flow, mut share) = (flow(&other), Share::none_of(&part));
        while share.try_grow_in_plenty(1) {}
        assert!((380..=400).contains(&share.bytes()), "{}", share.bytes());
    }

    proptest! {
        /// In any order, parts are what their shares have grown by, and the budget holds.
        #[test]
        fn parts_are_the_sums_of_their_shares(
            steps in vec((0..12usize, 0..5u8, 0..300u64), 1..300),
        ) {
            let budget = Arc::new(MemoryBudget::new(LIMIT));
            let parts = [(); 3].map(|()| Arc::new(MemoryPart::new(&budget)));
            let mut shares: Vec<Option<Share>> = (0..12).map(|_| None).collect();
            for (at, step, bytes) in steps {
                let part = &parts[at % 3];
                match (&mut shares[at], step) {
                    (none @ None, _) => {
                        *none = Share::take(&budget, 10);
                        if let Some(share) = none {
                            share.belong(part, 10);
                        }
                    }
                    (Some(share), 0) => {
                        let others = parts.iter().any(|other| {
                            !Arc::ptr_eq(other, part) && other.flows.load(Relaxed) > 0
                        });
                        let taken = budget.taken() + bytes;
                        let left = (LIMIT * 3 / 4).checked_sub(taken);
                        let multiple = if others { 2 } else { 8 };
                        let has = part.grown() + bytes;
                        let fits = left.is_some_and(|left| has <= multiple * left)
                            || has + taken <= LIMIT * 7 / 8;
                        prop_assert_eq!(share.try_grow(bytes), fits);
                    }
                    (Some(share), 1) => share.give_back(bytes.min(share.bytes())),
                    (Some(share), 2) => share.grow(bytes / 10),
                    (some, _) => *some = None,
                }
                for (number, part) in parts.iter().enumerate() {
                    let own = shares.iter().skip(number).step_by(3).flatten();
                    let grown: u64 = own.map(|share| share.bytes().saturating_sub(10)).sum();
                    prop_assert_eq!(part.grown(), grown);
                }
            }
            shares.clear();
            prop_assert_eq!((budget.taken(), budget.parties.load(Relaxed)), (0, 0));
        }
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
