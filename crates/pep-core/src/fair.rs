//! Fair queues: the items of several parties, which take turns with equal shares of time.
//!
//! Deficit round robin (Shreedhar and Varghese, SIGCOMM 1995). The cost of an item is known only
//! after it was handled, so a party pays afterwards, and skips turns until its debt is paid.
//!
//! ```text
//!   push --> party 0: [ a b c ]   balance 120 us   <-- its turn while the balance is positive
//!            party 2: [ d ]       balance 250 us
//!            party 1: [ e f ... ] balance -3 ms    skips 12 turns
//! ```

use std::{collections::VecDeque, time::Duration};

/// Time that each party may use a turn.
pub const QUANTUM: Duration = Duration::from_micros(250);
/// Maximum of time charged for an item: what exceeds it was hardly the item's work, but that of
/// other processes.
const COST_MAX: Duration = Duration::from_millis(50);

/// Limits of the queues in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum of one party's queue.
    pub party: u64,
    /// Maximum of all queues together.
    pub total: u64,
}

/// Items of parties that wait for their turn. Parties are numbered from 0.
#[derive(Debug)]
pub struct FairQueues<T> {
    bounds: Bounds,
    queues: Vec<Queue<T>>,
    /// Parties with items, in the order of their turns.
    order: VecDeque<usize>,
    bytes: u64,
    /// Bytes of items that are kept.
    kept: u64,
}

#[derive(Debug)]
struct Item<T> {
    content: T,
    size: u64,
    /// Exemption from dropping.
    is_kept: bool,
}

#[derive(Debug)]
struct Queue<T> {
    items: VecDeque<Item<T>>,
    bytes: u64,
    /// Bytes of items that may be dropped.
    droppable: u64,
    /// Nanoseconds that the party may use; negative if it has used more than its turns gave.
    balance: i64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            items: VecDeque::new(),
            bytes: 0,
            droppable: 0,
            balance: 0,
        }
    }
}

impl<T> FairQueues<T> {
    /// Creates empty queues.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            queues: Vec::new(),
            order: VecDeque::new(),
            bytes: 0,
            kept: 0,
        }
    }

    /// Returns whether no item waits.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Returns the bytes of a party's items.
    pub fn bytes_of(&self, party: usize) -> u64 {
        self.queues.get(party).map_or(0, |queue| queue.bytes)
    }

    /// Returns whether a party has its share of [kept](Self::push_kept) items, and should push no
    /// more of them for now. Half of the total is shared equally among the parties that wait; half
    /// of a party's maximum is the most. The shares of earlier times may have been larger: once
    /// kept items take three quarters of the total, a party may have one, and an eighth stays free.
    pub fn has_share(&self, party: usize) -> bool {
        let Bounds { party: most, total } = self.bounds;
        let (has, waiting) = (self.bytes_of(party), self.order.len().max(1) as u64);
        let is_scarce = self.kept > total / 4 * 3;
        has > (total / 2 / waiting).min(most / 2)
            || is_scarce && (has > 0 || self.kept > total / 8 * 7)
    }

    /// Queues an item of `size` bytes, 1 or more. Returns the items that are dropped for it: the
    /// item itself if the party's queue is full, or the newest of the longest queues if all
    /// together are.
    pub fn push(&mut self, party: usize, size: u64, item: T) -> Vec<T> {
        if self.bytes_of(party) + size > self.bounds.party {
            return vec![item];
        }
        self.add(party, size, item, false)
    }

    /// Queues an item that is never dropped. Returns the other items that are dropped for it. The
    /// caller bounds these items, by [`has_share`](Self::has_share).
    pub fn push_kept(&mut self, party: usize, size: u64, item: T) -> Vec<T> {
        self.add(party, size, item, true)
    }

    fn add(&mut self, party: usize, size: u64, content: T, is_kept: bool) -> Vec<T> {
        if self.queues.len() <= party {
            self.queues.resize_with(party + 1, Queue::default);
        }
        let queue = &mut self.queues[party];
        if queue.items.is_empty() {
            queue.balance = (queue.balance + nanoseconds(QUANTUM)).min(nanoseconds(QUANTUM));
            self.order.push_back(party);
        }
        queue.items.push_back(Item {
            content,
            size,
            is_kept,
        });
        queue.bytes += size;
        self.bytes += size;
        *(if is_kept {
            &mut self.kept
        } else {
            &mut queue.droppable
        }) += size;
        let mut dropped = Vec::new();
        while self.bytes > self.bounds.total
            && let Some(item) = self.drop_newest_of_longest()
        {
            dropped.push(item);
        }
        dropped
    }

    /// Drops the newest item that may be dropped, of the party with most bytes of such items.
    fn drop_newest_of_longest(&mut self) -> Option<T> {
        let parties = self.order.iter().copied();
        let longest = parties.max_by_key(|party| self.queues[*party].droppable)?;
        let queue = &mut self.queues[longest];
        // The last one, unless the party also has items that are kept.
        let place = queue.items.iter().rposition(|item| !item.is_kept)?;
        let item = queue.items.remove(place)?;
        queue.bytes -= item.size;
        queue.droppable -= item.size;
        self.bytes -= item.size;
        if queue.items.is_empty() {
            self.order.retain(|party| *party != longest);
        }
        Some(item.content)
    }

    /// Takes the next item. [Charge](Self::charge) its cost to its party before the next call.
    pub fn pop(&mut self) -> Option<(usize, T)> {
        loop {
            let party = *self.order.front()?;
            let queue = &mut self.queues[party];
            if queue.balance <= 0 {
                queue.balance += nanoseconds(QUANTUM);
                self.order.rotate_left(1);
                continue;
            }
            let Some(item) = queue.items.pop_front() else {
                self.order.pop_front();
                continue;
            };
            queue.bytes -= item.size;
            self.bytes -= item.size;
            *(if item.is_kept {
                &mut self.kept
            } else {
                &mut queue.droppable
            }) -= item.size;
            if queue.items.is_empty() {
                // Time that a party did not need is not saved up; its debts stay.
                queue.balance = 0;
                self.order.pop_front();
            }
            return Some((party, item.content));
        }
    }

    /// Charges the time that an item took to its party.
    pub fn charge(&mut self, party: usize, cost: Duration) {
        if let Some(queue) = self.queues.get_mut(party) {
            queue.balance -= nanoseconds(cost.min(COST_MAX));
        }
    }
}

fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const US: Duration = Duration::from_micros(1);
    const BOUNDS: Bounds = Bounds {
        party: 1000,
        total: 2500,
    };

    /// A party that sends items of one size and cost at regular intervals.
    #[derive(Debug, Clone, Copy)]
    struct Sender {
        every: Duration,
        size: u64,
        cost: Duration,
    }

    /// Fate of a party's items.
    #[derive(Debug, Clone, Copy, Default)]
    struct Outcome {
        dropped: u64,
        handled: u64,
        worked: Duration,
        waited: Duration,
    }

    /// One CPU handles the items of all senders for that long.
    fn run(senders: &[Sender], lasting: Duration, bounds: Bounds) -> Vec<Outcome> {
        let mut queues = FairQueues::new(bounds);
        let mut outcomes = vec![Outcome::default(); senders.len()];
        let mut next = vec![Duration::ZERO; senders.len()];
        let mut now = Duration::ZERO;
        while now < lasting {
            let mut arrivals = Vec::new();
            for (party, sender) in senders.iter().enumerate() {
                while next[party] <= now {
                    arrivals.push((next[party], party));
                    next[party] += sender.every;
                }
            }
            arrivals.sort_unstable();
            for (at, party) in arrivals {
                for (dropped, _) in queues.push(party, senders[party].size, (party, at)) {
                    outcomes[dropped].dropped += 1;
                }
            }
            let Some((party, (_, at))) = queues.pop() else {
                now = *next.iter().min().expect("there are senders");
                continue;
            };
            let outcome = &mut outcomes[party];
            outcome.waited = outcome.waited.max(now - at);
            outcome.handled += 1;
            outcome.worked += senders[party].cost;
            queues.charge(party, senders[party].cost);
            now += senders[party].cost;
        }
        outcomes
    }

    fn rogue() -> impl Strategy<Value = Sender> {
        (50_u32..2000, 40_u64..1500, 1_u32..3000).prop_map(|(every, size, cost)| Sender {
            every: US * every,
            size,
            cost: US * cost,
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Below its share, nothing of a party is dropped, and nothing waits for long.
        #[test]
        fn a_party_below_its_share_gets_all_that_it_wants(
            rogues in prop::collection::vec(rogue(), 1..8),
            cost in 5_u32..100,
            place in 0_usize..8,
        ) {
            let parties = u32::try_from(rogues.len()).unwrap() + 1;
            let honest = Sender {
                every: US * cost * parties * 5 / 4,
                size: 1400,
                cost: US * cost,
            };
            let place = place.min(rogues.len());
            let mut senders = rogues;
            senders.insert(place, honest);
            let bounds = Bounds { party: 1 << 20, total: 4 << 20 };
            let outcomes = run(&senders, Duration::from_secs(1), bounds);
            prop_assert_eq!(outcomes[place].dropped, 0);
            // A turn of each: its quantum, and once in a while an item that exceeds it.
            let costs = senders.iter().map(|sender| sender.cost + QUANTUM);
            let round: Duration = costs.sum();
            prop_assert!(outcomes[place].waited <= 2 * round, "{:?} {round:?}", outcomes[place]);
        }

        /// Parties that all want more than their share get equal time, whatever their items cost.
        #[test]
        fn busy_parties_get_equal_time(costs in prop::collection::vec(50_u32..3000, 2..8)) {
            let sender = |cost: &u32| Sender { every: US * 40, size: 60, cost: US * *cost };
            let senders: Vec<_> = costs.iter().map(sender).collect();
            let bounds = Bounds { party: 60_000, total: 1 << 20 };
            let outcomes = run(&senders, Duration::from_secs(2), bounds);
            let most = outcomes.iter().map(|outcome| outcome.worked).max().unwrap();
            let least = outcomes.iter().map(|outcome| outcome.worked).min().unwrap();
            prop_assert!(most - least <= 2 * (QUANTUM + US * 3000), "{outcomes:?}");
        }

        /// Parties that push kept items while they have no share lose none, whatever others push,
        /// and have equal shares.
        #[test]
        fn kept_items_are_never_dropped_and_their_parties_have_equal_shares(
            kept in 1_usize..40,
            others in 0_usize..12,
            sizes in prop::collection::vec(40_u64..1500, 1..20),
        ) {
            let bounds = Bounds { party: 1 << 17, total: 1 << 20 };
            let mut queues = FairQueues::new(bounds);
            let (mut size, mut handled) = (sizes.iter().cycle(), vec![0; kept]);
            let mut waiting = vec![0_u32; kept];
            for round in 0..300 {
                if round == 150 {
                    // Shares were larger before all had come.
                    handled.fill(0);
                }
                for (party, waiting) in waiting.iter_mut().enumerate() {
                    // As much as it may, after those before it.
                    while !queues.has_share(party) {
                        let size = *size.next().unwrap();
                        let dropped = queues.push_kept(party, size, party);
                        prop_assert!(dropped.iter().all(|party| *party >= kept));
                        *waiting += 1;
                    }
                }
                for party in kept..kept + others {
                    for _ in 0..100 {
                        let dropped = queues.push(party, 1500, party);
                        prop_assert!(dropped.iter().all(|party| *party >= kept));
                    }
                }
                prop_assert!(queues.bytes <= bounds.total);
                for _ in 0..100 {
                    // One party alone may have fewer large items.
                    let Some((party, item)) = queues.pop() else {
                        prop_assert_eq!(kept + others, 1);
                        break;
                    };
                    prop_assert_eq!(party, item);
                    queues.charge(party, QUANTUM);
                    if party < kept {
                        waiting[party] -= 1;
                        handled[party] += 1;
                    }
                }
            }
            let (most, least) = (handled.iter().max(), handled.iter().min());
            prop_assert!(*most.unwrap() - *least.unwrap() <= 2, "{:?}", handled);
            while let Some((party, _)) = queues.pop() {
                queues.charge(party, US);
                if party < kept {
                    waiting[party] -= 1;
                }
            }
            prop_assert!(waiting.iter().all(|count| *count == 0), "all came out");
            prop_assert_eq!((queues.bytes, queues.kept), (0, 0));
        }

        /// Against a naive model: each party's items come in order, and bounds hold.
        #[test]
        fn items_keep_their_order_and_bounds_hold(
            steps in prop::collection::vec((0_usize..4, 1_u64..700, 0_u32..900, any::<bool>()), 1..300),
        ) {
            let mut queues = FairQueues::new(BOUNDS);
            let mut model: BTreeMap<usize, VecDeque<(usize, u64, usize)>> = BTreeMap::new();
            for (number, (party, size, cost, pushes)) in steps.into_iter().enumerate() {
                if pushes {
                    let item = (party, size, number);
                    model.entry(party).or_default().push_back(item);
                    for dropped in queues.push(party, size, item) {
                        let newest = model.get_mut(&dropped.0).and_then(VecDeque::pop_back);
                        prop_assert_eq!(newest, Some(dropped), "the newest is dropped");
                    }
                } else if let Some((party, item)) = queues.pop() {
                    queues.charge(party, US * cost);
                    let oldest = model.get_mut(&party).and_then(VecDeque::pop_front);
                    prop_assert_eq!(oldest, Some(item), "the oldest comes first");
                } else {
                    prop_assert!(model.values().all(VecDeque::is_empty), "an item is kept back");
                }
                let sums = model.values().map(|queue| queue.iter().map(|item| item.1).sum::<u64>());
                prop_assert!(sums.clone().all(|sum| sum <= BOUNDS.party));
                let total: u64 = sums.sum();
                prop_assert!(total <= BOUNDS.total);
                prop_assert_eq!(queues.is_empty(), total == 0);
            }
        }
    }

    #[test]
    fn the_longest_queue_pays_for_what_exceeds_the_total() {
        let mut queues = FairQueues::new(BOUNDS);
        for (party, item) in [(0, 'a'), (1, 'b'), (2, 'c')] {
            assert_eq!(queues.push(party, 700, item), []);
        }
        assert_eq!(queues.push(1, 200, 'd'), []);
        assert_eq!(queues.push(3, 300, 'e'), ['d']);
        assert_eq!(queues.push(0, 400, 'f'), ['f'], "one party's limit");
        assert_eq!(queues.bytes_of(1), 700);
    }

    #[test]
    fn a_debt_outlasts_an_empty_queue() {
        let mut queues = FairQueues::new(BOUNDS);
        queues.push(0, 1, 'a');
        assert_eq!(queues.pop(), Some((0, 'a')));
        queues.charge(0, QUANTUM * 10);
        queues.push(0, 1, 'b');
        for item in ['c', 'd', 'e'] {
            queues.push(1, 1, item);
            assert_eq!(queues.pop(), Some((1, item)));
            queues.charge(1, US);
        }
        assert_eq!(
            queues.pop(),
            Some((0, 'b')),
            "no other party wants the time"
        );
    }
}
