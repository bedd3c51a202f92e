//! When a process that lives does not go on.

use std::time::Duration;

/// How often to look at least.
pub(super) const LOOK: Duration = Duration::from_secs(1);
/// Who looks later than that was kept from running itself, as the one that is looked after may have been.
const LATE: Duration = Duration::from_secs(2);
/// For so long, of which we were there, nothing has come.
const PATIENCE: Duration = Duration::from_secs(10);
/// Before the first sign of life. What flows have on disk, many gigabytes perhaps, is read at the start.
const START: Duration = Duration::from_secs(600);

/// How long to wait for a sign of life.
#[derive(Debug)]
pub(super) struct Watchdog {
    looked: Duration,
    left: Duration,
}

impl Watchdog {
    /// Looks from now on. Times are by a clock that stands still while the machine is suspended.
    pub(super) fn new(now: Duration) -> Self {
        Self {
            looked: now,
            left: START,
        }
    }

    /// Takes note of whether there was a sign of life since the last look. Whether there has been none for too long.
    pub(super) fn poll(&mut self, now: Duration, sign: bool) -> bool {
        let since = now.saturating_sub(self.looked);
        self.looked = now;
        if sign {
            self.left = PATIENCE;
        } else if since <= LATE {
            self.left = self.left.saturating_sub(since);
        }
        self.left.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_start_may_take_longer_than_a_pause_later() {
        let mut dog = Watchdog::new(s(0));
        let hung = (1..).find(|at| dog.poll(s(*at), false));
        assert_eq!(hung, Some(600));
        let mut dog = Watchdog::new(s(0));
        assert!((1..100).all(|at| !dog.poll(s(at), false)), "it starts");
        assert!(!dog.poll(s(100), true));
        let hung = (101..).find(|at| dog.poll(s(*at), false));
        assert_eq!(hung, Some(110));
    }

    #[test]
    fn any_sign_of_life_begins_anew() {
        let mut dog = Watchdog::new(s(0));
        assert!((1..1000).all(|at| !dog.poll(s(at), at % 9 == 0)));
    }

    #[test]
    fn while_we_were_kept_from_looking_so_was_the_other_one() {
        let mut dog = Watchdog::new(s(0));
        dog.poll(s(0), true);
        // A machine on which nobody gets a processor for three seconds, or that sleeps for hours.
        assert!((1..100).all(|at| !dog.poll(s(3 * at), false)));
        assert!(!dog.poll(s(100_000), false));
        let hung = (100_001..).find(|at| dog.poll(s(*at), false));
        assert_eq!(hung, Some(100_010));
    }
}
