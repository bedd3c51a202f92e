//! Policy after an unexpected end of the worker process.

use std::time::Duration;

/// Age above which the end of a worker has another cause than the flows that it took over.
const YOUNG: Duration = Duration::from_secs(2);
/// Number of early ends in a row after which the next worker resets the flows, which may be the
/// cause.
const DISCARD_AFTER: u32 = 3;
/// Number of early ends in a row after which the supervisor gives up.
const GIVE_UP_AFTER: u32 = 10;
/// Pause before the third start; doubled each time. The first restart is immediate.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Number of early ends in a row.
#[derive(Debug, Default)]
pub(super) struct Deaths {
    young: u32,
    /// Number of crashes among them: neither a failed start nor a kill is caused by a flow.
    crashed: u32,
    any: bool,
}

/// Next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Start another worker.
    Start {
        /// Pause before the start.
        after: Duration,
        /// True if it resets the flows of its predecessor.
        discards: bool,
    },
    /// Give up.
    GiveUp,
}

impl Deaths {
    /// Returns true before the second early end.
    pub(super) fn is_first(&self) -> bool {
        !self.any
    }

    /// Records the end of a worker of this age, and returns the next step.
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
    fn early_ends_delay_the_next_start_then_discard_flows_then_give_up() {
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
