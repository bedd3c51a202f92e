//! When a process that lives does not go on.

use std::time::Duration;

/// How often to look at least.
pub(super) const LOOK: Duration = Duration::from_secs(1);
/// Who looks later than that was kept from running itself, as the one that is looked after may have been.
const LATE: Duration = Duration::from_secs(2);
/// For so long, of which we were there, nothing has come.
const PATIENCE: Duration = Duration::from_secs(10);

/// For how long there has been no sign of life. Before the first one nothing is said: a start takes what it takes.
#[derive(Debug)]
pub(super) struct Watchdog {
    looked: Duration,
    silent: Option<Duration>,
}

impl Watchdog {
    /// Looks from now on. Times are by a clock that stands still while the machine is suspended.
    pub(super) fn new(now: Duration) -> Self {
        Self {
            looked: now,
            silent: None,
        }
    }

    /// Takes note of whether there was a sign of life since the last look. Whether there has been none for too long.
    pub(super) fn look(&mut self, now: Duration, sign: bool) -> bool {
        let since = now.saturating_sub(self.looked);
        self.looked = now;
        if sign {
            self.silent = Some(Duration::ZERO);
        }
        let Some(silent) = &mut self.silent else {
            return false;
        };
        if !sign && since <= LATE {
            *silent += since;
        }
        *silent >= PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn silence_counts_from_the_first_sign_of_life_on() {
        let mut dog = Watchdog::new(s(0));
        assert!((1..100).all(|at| !dog.look(s(at), false)), "it starts");
        assert!(!dog.look(s(100), true));
        let hung = (101..).find(|at| dog.look(s(*at), false));
        assert_eq!(hung, Some(110));
    }

    #[test]
    fn any_sign_of_life_begins_anew() {
        let mut dog = Watchdog::new(s(0));
        assert!((1..1000).all(|at| !dog.look(s(at), at % 9 == 0)));
    }

    #[test]
    fn while_we_were_kept_from_looking_so_was_the_other_one() {
        let mut dog = Watchdog::new(s(0));
        dog.look(s(0), true);
        // A machine on which nobody gets a processor for three seconds, or that sleeps for hours.
        assert!((1..100).all(|at| !dog.look(s(3 * at), false)));
        assert!(!dog.look(s(100_000), false));
        let hung = (100_001..).find(|at| dog.look(s(*at), false));
        assert_eq!(hung, Some(100_010));
    }
}
