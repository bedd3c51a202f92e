//! Watchdog: detection of a worker that hangs.

use std::time::Duration;

/// Maximum interval between checks.
pub(super) const LOOK: Duration = Duration::from_secs(1);
/// Delay of a check above which the supervisor itself was kept from running, as the worker may have
/// been.
const LATE: Duration = Duration::from_secs(2);
/// Time without a heartbeat, of checks in time, after which the worker hangs.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time until the first heartbeat. At its start the worker reads the data of flows on disk,
/// possibly many gigabytes.
const START: Duration = Duration::from_secs(600);

/// Watchdog of one worker.
#[derive(Debug)]
pub(super) struct Watchdog {
    looked: Duration,
    left: Duration,
}

impl Watchdog {
    /// Returns a watchdog that starts now. Times are of a clock that stops while the machine is
    /// suspended.
    pub(super) fn new(now: Duration) -> Self {
        Self {
            looked: now,
            left: START,
        }
    }

    /// Records if a heartbeat has arrived since the last check. Returns true if the worker hangs.
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
    fn any_sign_of_life_restarts_the_timeout() {
        let mut dog = Watchdog::new(s(0));
        assert!((1..1000).all(|at| !dog.poll(s(at), at % 9 == 0)));
    }

    #[test]
    fn while_we_were_kept_from_looking_so_was_the_other_one() {
        let mut dog = Watchdog::new(s(0));
        dog.poll(s(0), true);
        // A machine on which no process gets the CPU for three seconds, or that sleeps for hours.
        assert!((1..100).all(|at| !dog.poll(s(3 * at), false)));
        assert!(!dog.poll(s(100_000), false));
        let hung = (100_001..).find(|at| dog.poll(s(*at), false));
        assert_eq!(hung, Some(100_010));
    }
}
