//! Rounds in which the tasks of several parties run, with equal shares of CPU time.
//!
//! An executor runs woken tasks in the order of their wake-ups, so who wakes most tasks gets most
//! time. Here each party may use a [`QUANTUM`] a round, and its further tasks wait for the next
//! one. A round is one pass over all woken tasks, so a party delays others by its quantum and the
//! rest of one task. Where no other party has work, rounds follow each other at once.
//!
//! ```text
//!   enter --> balance > 0: runs --> charge --> next waiting task of the party
//!         \-> otherwise: waits, by number    round: balance + QUANTUM, first waiting task
//! ```
//!
//! Deficit round robin (Shreedhar and Varghese, SIGCOMM 1995) as in [`fair`](crate::fair), for work
//! that is not a queue of items.

use std::{collections::BTreeMap, time::Duration};

pub use crate::fair::QUANTUM;

/// Maximum of time charged for one run of a task: what exceeds it was hardly the task's work, but
/// that of other processes.
const COST_MAX: Duration = Duration::from_millis(50);

/// Parties, and their tasks that wait. `T` wakes a task.
#[derive(Debug)]
pub struct Rounds<P, T> {
    /// Parties that have used time, or have waiting tasks.
    parties: BTreeMap<P, Party<T>>,
    next: u64,
    waiting: usize,
}

#[derive(Debug)]
struct Party<T> {
    /// Nanoseconds that the party may use; negative if it has used more than its rounds gave.
    balance: i64,
    /// Tasks by the order in which they began to wait.
    waiting: BTreeMap<u64, T>,
}

/// A task's place among the waiting tasks of its party; `None` while it does not wait.
pub type Place = Option<u64>;

impl<P, T> Default for Rounds<P, T> {
    fn default() -> Self {
        Self {
            parties: BTreeMap::new(),
            next: 0,
            waiting: 0,
        }
    }
}

impl<P: Ord + Copy, T> Rounds<P, T> {
    /// Returns whether a task may run now. Otherwise the task waits at `place`, and its `waker`
    /// comes from a later call of [`charge`](Self::charge), [`leave`](Self::leave) or
    /// [`begin`](Self::begin).
    pub fn enter(&mut self, party: P, place: &mut Place, waker: impl FnOnce() -> T) -> bool {
        let party = self.parties.entry(party).or_insert_with(|| Party {
            balance: nanoseconds(QUANTUM),
            waiting: BTreeMap::new(),
        });
        let first = party.waiting.keys().next().copied();
        if party.balance > 0 && first == *place {
            if let Some(place) = place.take() {
                party.waiting.remove(&place);
                self.waiting -= 1;
            }
            return true;
        }
        let at = place.unwrap_or(self.next);
        if place.replace(at).is_none() {
            self.next += 1;
            self.waiting += 1;
        }
        party.waiting.insert(at, waker());
        false
    }

    /// Charges a party the time that one of its tasks took. Returns its next task, if that may run.
    pub fn charge(&mut self, party: P, cost: Duration) -> Option<&T> {
        let party = self.parties.get_mut(&party)?;
        party.balance -= nanoseconds(cost.min(COST_MAX));
        party.ready()
    }

    /// Removes a task that ends while it waits. Returns the party's next task, if that may run.
    pub fn leave(&mut self, party: P, place: &mut Place) -> Option<&T> {
        let place = place.take()?;
        let party = self.parties.get_mut(&party)?;
        if party.waiting.remove(&place).is_some() {
            self.waiting -= 1;
        }
        party.ready()
    }

    /// Begins a round: all parties get a quantum. Passes the first task of each that may run.
    pub fn begin(&mut self, mut wake: impl FnMut(&T)) {
        self.parties.retain(|_, party| {
            party.balance = (party.balance + nanoseconds(QUANTUM)).min(nanoseconds(QUANTUM));
            if let Some(task) = party.ready() {
                wake(task);
            }
            !party.waiting.is_empty() || party.balance < nanoseconds(QUANTUM)
        });
    }

    /// Returns whether a task waits for a later round, so that one should begin.
    pub fn has_waiting(&self) -> bool {
        self.waiting > 0
    }
}

impl<T> Party<T> {
    fn ready(&self) -> Option<&T> {
        let first = self.waiting.values().next();
        first.filter(|_| self.balance > 0)
    }
}

fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// Tasks that tokio runs between two looks at sockets.
    const TURN: usize = 61;

    /// Tasks of parties that always have work, in an executor that runs them in the order of their
    /// wake-ups. A task is a number; it belongs to the party `task % 10`.
    struct Executor {
        rounds: Rounds<usize, usize>,
        woken: VecDeque<usize>,
        places: Vec<Place>,
        costs: Vec<Duration>,
        ran: Vec<Vec<usize>>,
    }

    impl Executor {
        fn new(tasks: &[usize], costs: Vec<Duration>) -> Self {
            Self {
                rounds: Rounds::default(),
                woken: tasks.iter().copied().collect(),
                places: vec![None; 1000],
                ran: vec![Vec::new(); costs.len()],
                costs,
            }
        }

        /// A turn of the executor, and the beginning of the next round.
        fn pass(&mut self) {
            for _ in 0..TURN {
                let Some(task) = self.woken.pop_front() else {
                    break;
                };
                let party = task % 10;
                if !self.rounds.enter(party, &mut self.places[task], || task) {
                    continue;
                }
                self.ran[party].push(task);
                let next = self.rounds.charge(party, self.costs[party]).copied();
                self.woken.extend(next.filter(|next| *next != task));
                self.woken.push_back(task);
            }
            if self.rounds.has_waiting() {
                let woken = &mut self.woken;
                self.rounds.begin(|task| woken.push_back(*task));
            }
        }

        fn time(&self, party: usize) -> Duration {
            self.costs[party] * self.ran[party].len() as u32
        }
    }

    #[test]
    fn parties_with_work_get_equal_time_however_many_their_tasks_are() {
        let us = Duration::from_micros;
        let mut tasks: Vec<_> = (0..90).map(|number| number * 10).collect();
        tasks.extend([1, 2]);
        let mut executor = Executor::new(&tasks, vec![us(10), us(40), us(3000)]);
        for _ in 0..20_000 {
            executor.pass();
        }
        let times = [0, 1, 2].map(|party| executor.time(party).as_secs_f64());
        let most = times.iter().copied().fold(0.0, f64::max);
        assert!(times.iter().all(|time| *time > 0.9 * most), "{times:?}");
        // The tasks of a party take turns.
        let mut runs = vec![0; 900];
        executor.ran[0].iter().for_each(|task| runs[*task] += 1);
        let runs: Vec<_> = runs.into_iter().step_by(10).collect();
        let (least, most) = (runs.iter().min(), runs.iter().max());
        assert!(
            most.zip(least)
                .is_some_and(|(most, least)| most - least <= 30),
            "{runs:?}"
        );
    }

    #[test]
    fn a_party_delays_others_by_its_quantum_and_one_task() {
        let us = Duration::from_micros;
        let tasks: Vec<_> = (0..90).map(|number| number * 10).collect();
        let mut executor = Executor::new(&tasks, vec![us(10)]);
        for _ in 0..100 {
            let before = executor.time(0);
            executor.pass();
            assert!(executor.time(0) - before <= QUANTUM + us(10));
        }
        // Nothing else runs, so all time is used.
        assert!(executor.time(0) >= 90 * QUANTUM);
    }

    #[test]
    fn the_end_of_the_first_waiting_task_wakes_the_next() {
        let mut rounds = Rounds::default();
        let mut places = [None; 3];
        assert!(rounds.enter((), &mut places[0], || 0));
        rounds.charge((), QUANTUM);
        for at in [1, 2] {
            assert!(!rounds.enter((), &mut places[at], || at));
        }
        let mut woken = Vec::new();
        rounds.begin(|task| woken.push(*task));
        assert_eq!(woken, [1]);
        assert_eq!(rounds.leave((), &mut places[1]), Some(&2));
        assert!(rounds.enter((), &mut places[2], || 2));
        assert!(!rounds.has_waiting());
    }

    proptest! {
        /// Whatever happens, no task waits for ever, and none is counted that does not wait.
        #[test]
        fn every_task_that_waits_is_woken(
            steps in prop::collection::vec((0..30_usize, 0..3_u8, 0..900_u64), 1..400),
        ) {
            let mut rounds = Rounds::default();
            let mut places = vec![None; 30];
            let mut waiting = std::collections::BTreeSet::new();
            for (task, what, cost) in steps {
                let party = task % 3;
                if what == 0 {
                    rounds.leave(party, &mut places[task]);
                    waiting.remove(&task);
                } else if rounds.enter(party, &mut places[task], || task) {
                    waiting.remove(&task);
                    rounds.charge(party, Duration::from_micros(cost));
                } else {
                    waiting.insert(task);
                }
                prop_assert_eq!(rounds.has_waiting(), !waiting.is_empty());
            }
            for _ in 0..100_000 {
                if !rounds.has_waiting() {
                    break;
                }
                let mut woken = VecDeque::new();
                rounds.begin(|task| woken.push_back(*task));
                while let Some(task) = woken.pop_front() {
                    prop_assert!(rounds.enter(task % 3, &mut places[task], || task));
                    prop_assert!(waiting.remove(&task));
                    woken.extend(rounds.charge(task % 3, Duration::from_micros(20)).copied());
                }
            }
            prop_assert!(waiting.is_empty(), "{:?}", waiting);
        }
    }
}
