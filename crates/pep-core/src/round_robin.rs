//! Round robin: parties take turns, and items of one party come in the order of their arrival.
//!
//! ```text
//!   push --> party 2: [ a b c ]   its turn
//!            party 0: [ d ]       is the next party
//!            party 1: [ e f ... ]
//! ```
//!
//! A party with many items so delays another by one item per turn. [`fair`](crate::fair) is for
//! items that differ in cost.

use std::collections::BTreeMap;

/// Items that wait, by party. No call takes time linear in their number. Memory is for waiting
/// items only: nothing is kept of a party without any.
#[derive(Debug)]
pub struct RoundRobin<P, T> {
    parties: BTreeMap<P, Party<T>>,
    /// Parties with items, by the numbers of their turns.
    turns: BTreeMap<u64, P>,
    /// The next number, of an item or a turn.
    next: u64,
}

#[derive(Debug)]
struct Party<T> {
    turn: u64,
    /// Items by number, 1 or more.
    items: BTreeMap<u64, T>,
}

/// Place of an item that waits, or has waited: each item has its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place<P> {
    party: P,
    number: u64,
}

impl<P, T> Default for RoundRobin<P, T> {
    fn default() -> Self {
        Self {
            parties: BTreeMap::new(),
            turns: BTreeMap::new(),
            next: 0,
        }
    }
}

impl<P: Copy + Ord, T> RoundRobin<P, T> {
    /// Returns whether no item waits.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Adds an item behind those of its party. A party without any gets its turn after all others.
    pub fn push(&mut self, party: P, item: T) -> Place<P> {
        let number = self.number();
        let turns = &mut self.turns;
        let of_party = self.parties.entry(party).or_insert_with(|| {
            turns.insert(number, party);
            Party {
                turn: number,
                items: BTreeMap::new(),
            }
        });
        of_party.items.insert(number, item);
        Place { party, number }
    }

    /// Returns the item that is next, and its place. Items that are added later do not overtake it.
    pub fn first(&self) -> Option<(Place<P>, &T)> {
        let (_, &party) = self.turns.first_key_value()?;
        let (&number, item) = self.parties.get(&party)?.items.first_key_value()?;
        Some((Place { party, number }, item))
    }

    /// Takes the item that is next. The next turn of its party is after those of all others.
    pub fn pop(&mut self) -> Option<T> {
        let (place, _) = self.first()?;
        let item = self.remove(place);
        let turn = self.number();
        if let Some(of_party) = self.parties.get_mut(&place.party) {
            self.turns.remove(&of_party.turn);
            self.turns.insert(turn, place.party);
            of_party.turn = turn;
        }
        item
    }

    /// Removes an item, out of turn. Further items of its party keep the turn. Returns `None` if it
    /// no longer waits.
    pub fn remove(&mut self, place: Place<P>) -> Option<T> {
        let of_party = self.parties.get_mut(&place.party)?;
        let item = of_party.items.remove(&place.number)?;
        if of_party.items.is_empty() {
            self.turns.remove(&of_party.turn);
            self.parties.remove(&place.party);
        }
        Some(item)
    }

    /// Returns a number greater than all before.
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    /// Items in the order of their arrival, and parties in the order of their turns.
    #[derive(Debug, Default)]
    struct Naive {
        items: Vec<(u8, usize)>,
        order: Vec<u8>,
    }

    impl Naive {
        fn push(&mut self, party: u8, item: usize) {
            self.items.push((party, item));
            if !self.order.contains(&party) {
                self.order.push(party);
            }
        }

        fn first(&self) -> Option<(u8, usize)> {
            let party = self.order.first()?;
            self.items.iter().find(|(of, _)| of == party).copied()
        }

        fn remove(&mut self, item: (u8, usize)) {
            self.items.retain(|other| *other != item);
            let has_more = |party: &u8| self.items.iter().any(|(of, _)| of == party);
            self.order.retain(has_more);
        }

        fn pop(&mut self) -> Option<(u8, usize)> {
            let first = self.first()?;
            self.remove(first);
            if self.order.first() == Some(&first.0) {
                self.order.rotate_left(1);
            }
            Some(first)
        }
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Push(u8),
        Pop,
        /// Of an item that has been added, whether or not it waits.
        Remove(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0_u8..5).prop_map(Step::Push),
            2 => Just(Step::Pop),
            1 => any::<usize>().prop_map(Step::Remove),
        ]
    }

    proptest! {
        #[test]
        fn who_is_next_is_as_in_lists(steps in vec(step(), 1..300)) {
            let (mut round, mut naive) = (RoundRobin::default(), Naive::default());
            let mut places = Vec::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Push(party) => {
                        places.push((round.push(party, (party, number)), (party, number)));
                        naive.push(party, number);
                    }
                    Step::Pop => prop_assert_eq!(round.pop(), naive.pop()),
                    Step::Remove(_) if places.is_empty() => {}
                    Step::Remove(which) => {
                        let (place, item) = places[which % places.len()];
                        let waits = naive.items.contains(&item);
                        prop_assert_eq!(round.remove(place), waits.then_some(item));
                        naive.remove(item);
                    }
                }
                let first = round.first();
                prop_assert_eq!(first.map(|(_, item)| *item), naive.first());
                let is_at = |place| places.iter().any(|(at, item)| {
                    *at == place && Some(*item) == naive.first()
                });
                prop_assert!(first.is_none_or(|(place, _)| is_at(place)));
                prop_assert_eq!(round.is_empty(), naive.items.is_empty());
                // Nothing is kept of parties without items.
                prop_assert_eq!(round.parties.len(), naive.order.len());
                prop_assert_eq!(round.turns.len(), naive.order.len());
            }
        }
    }

    #[test]
    fn one_that_waits_alone_is_next_after_one_of_each_other_party() {
        let mut round = RoundRobin::default();
        for number in 0..1000 {
            round.push(number % 2, number);
        }
        round.push(2, 1000);
        let order: Vec<_> = std::iter::from_fn(|| round.pop()).collect();
        assert_eq!(order[..5], [0, 1, 1000, 2, 3]);
        assert_eq!(order.len(), 1001);
    }
}
