//! What comes after a process that carried flows has ended unasked.

use std::time::Duration;

/// Who lives that long has ended by something else than what it took over.
const YOUNG: Duration = Duration::from_secs(2);
/// So many that die young in a row may have been killed by what they took over: the next one resets it.
const DISCARD_AFTER: u32 = 3;
/// After so many, nothing helps.
const GIVE_UP_AFTER: u32 = 10;
/// Between the second and the third; doubled each time. The first restart is at once.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How many have died young, one after the other.
#[derive(Debug, Default)]
pub(super) struct Deaths {
    young: u32,
    /// Of these, how many crashed: neither one that fails to start nor one that was killed ended by a flow.
    crashed: u32,
    any: bool,
}

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Another one.
    Start {
        /// After so long.
        after: Duration,
        /// It resets the flows of the one before.
        discards: bool,
    },
    /// Nothing.
    GiveUp,
}

impl Deaths {
    /// Whether none has died before the one that has just ended.
    pub(super) fn is_first(&self) -> bool {
        !self.any
    }

    /// One has ended, at that age, by what it did or not.
    pub(super) fn next(&mut self, age: Duration, crashed: bool) -> Next {
        self.any = true;
        (self.young, self.crashed) = match age < YOUNG {
            true => (self.young + 1, self.crashed + u32::from(crashed)),
            false => (0, 0),
        };
        if self.young >= GIVE_UP_AFTER {
            return Next::GiveUp;
        }
        let doublings = self.young.saturating_sub(2);
        let after = match self.young {
            0 | 1 => Duration::ZERO,
            _ => LONGEST_PAUSE.min(FIRST_PAUSE * 2_u32.pow(doublings)),
        };
        Next::Start {
            after,
            discards: self.crashed >= DISCARD_AFTER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Duration = Duration::from_secs(60);

    fn start(ms: u64, discards: bool) -> Next {
        let after = Duration::from_millis(ms);
        Next::Start { after, discards }
    }

    #[test]
    fn who_dies_young_is_followed_later_and_later_then_without_flows_then_by_nobody() {
        let mut deaths = Deaths::default();
        assert!(deaths.is_first());
        let next: Vec<_> = (0..10).map(|_| deaths.next(Duration::ZERO, true)).collect();
        let pauses = [
            (0, false),
            (100, false),
            (200, true),
            (400, true),
            (800, true),
        ];
        for (next, (ms, discards)) in next.iter().zip(pauses) {
            assert_eq!(*next, start(ms, discards));
        }
        assert_eq!(next[8], start(5000, true));
        assert_eq!(next[9], Next::GiveUp);
        assert!(!deaths.is_first());
    }

    #[test]
    fn one_that_lived_is_followed_at_once_whatever_was_before() {
        let mut deaths = Deaths::default();
        for _ in 0..5 {
            deaths.next(Duration::ZERO, true);
        }
        assert_eq!(deaths.next(OLD, true), start(0, false));
        assert_eq!(deaths.next(Duration::ZERO, true), start(0, false));
    }

    #[test]
    fn who_fails_to_start_has_not_been_killed_by_flows() {
        let mut deaths = Deaths::default();
        deaths.next(OLD, true);
        for _ in 0..5 {
            let next = deaths.next(Duration::ZERO, false);
            assert!(matches!(
                next,
                Next::Start {
                    discards: false,
                    ..
                }
            ));
        }
        assert_eq!(deaths.next(Duration::ZERO, true), start(1600, false));
    }
}
