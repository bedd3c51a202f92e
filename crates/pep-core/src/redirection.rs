//! Detection of lost redirection: SYNs that pepd's rules redirect, and that no listener accepts.
//!
//! Another program's firewall, policy rule or sysctl may drop packets that pepd's rules redirect.
//! Hosts then have no connections at all, and pepd sees nothing. So pepd compares redirected SYNs
//! with accepted flows: many SYNs and no flow is a loss.
//!
//! ```text
//!             3 SYNs in 10 s, none accepted           after 30 s, doubling up to 10 min
//!   Working ------------------------------> Lost ------------------------------------> Trial
//!      ^                                     ^                                          |  |
//!      |                                     '---- a SYN, 5 s old, none accepted -------'  |
//!      '------------------------------------------------ one is accepted ------------------'
//! ```

use std::time::Duration;

/// Time with redirected SYNs and no accepted flow that counts as a loss.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Minimum number of SYNs for a loss: one or two may be in transit, or from a host that has left.
pub const SYNS_MIN: u64 = 3;
/// Pause before the first trial.
pub const PAUSE_MIN: Duration = Duration::from_secs(30);
/// Maximum pause before later trials.
pub const PAUSE_MAX: Duration = Duration::from_secs(600);
/// Time for a SYN of a trial to be accepted.
const TRIAL: Duration = Duration::from_secs(5);
/// Time after which SYNs too few for a loss are discarded.
const STALE: Duration = Duration::from_secs(60);

/// Totals since the rules were installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// SYNs that rules have redirected, including repeated ones.
    pub redirected: u64,
    /// Handshakes that hosts aborted: pepd answered the SYN, so it had arrived. Also SYNs that the
    /// kernel may drop because of their source.
    pub aborted: u64,
    /// Flows accepted, or SYNs answered.
    pub accepted: u64,
}

impl Totals {
    /// SYNs since `earlier` that were redirected and are not otherwise accounted for.
    fn unexplained_since(self, earlier: Self) -> u64 {
        let redirected = self.redirected.saturating_sub(earlier.redirected);
        redirected.saturating_sub(self.aborted.saturating_sub(earlier.aborted))
    }

    /// True where a counter was reset: the rules were installed again.
    fn is_before(self, earlier: Self) -> bool {
        self.redirected < earlier.redirected || self.aborted < earlier.aborted
    }
}

/// A change that the caller acts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// SYNs are lost: the caller switches redirection off for `pause`, until the trial.
    Lost {
        /// SYNs that were redirected, but neither answered nor accepted.
        syns: u64,
        /// Time until the next trial.
        pause: Duration,
    },
    /// The caller switches redirection on, to test it.
    Trial,
    /// A flow was accepted: the loss is over.
    Works,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Working {
        base: Totals,
        since: Option<Duration>,
    },
    Lost {
        until: Duration,
        pause: Duration,
    },
    Trial {
        base: Totals,
        since: Option<Duration>,
        pause: Duration,
    },
}

/// State of the redirection of one site's flows of one family.
#[derive(Debug, Clone, Copy)]
pub struct Redirection(State);

impl Redirection {
    /// Returns redirection that is assumed to work, with these totals so far.
    pub const fn new(base: Totals) -> Self {
        Self(State::Working { base, since: None })
    }

    /// Reports whether redirection has to be off now.
    pub const fn is_lost(&self) -> bool {
        matches!(self.0, State::Lost { .. })
    }

    /// True while a loss may last: redirection is off, or on trial.
    pub const fn is_in_doubt(&self) -> bool {
        !matches!(self.0, State::Working { .. })
    }

    /// Brings the trial forward, as the obstacle may have gone.
    pub fn hurry(&mut self, now: Duration) {
        if let State::Lost { until, .. } = &mut self.0 {
            *until = now;
        }
    }

    /// Takes the totals at `now`, counted from a fixed arbitrary moment. The caller calls it every
    /// few seconds.
    pub fn observe(&mut self, now: Duration, totals: Totals) -> Option<Change> {
        match &mut self.0 {
            State::Working { base, since } => {
                if totals.accepted > base.accepted || totals.is_before(*base) {
                    self.0 = Self::new(totals).0;
                    return None;
                }
                let syns = totals.unexplained_since(*base);
                if syns == 0 {
                    return None;
                }
                let waited = now.saturating_sub(*since.get_or_insert(now));
                if waited >= PATIENCE && syns >= SYNS_MIN {
                    return Some(self.lose(now, syns, PAUSE_MIN));
                }
                if waited >= STALE {
                    self.0 = Self::new(totals).0;
                }
                None
            }
            State::Lost { until, pause } => {
                if now < *until {
                    return None;
                }
                self.0 = State::Trial {
                    base: totals,
                    since: None,
                    pause: *pause,
                };
                Some(Change::Trial)
            }
            State::Trial { base, since, pause } => {
                if totals.accepted > base.accepted {
                    self.0 = Self::new(totals).0;
                    return Some(Change::Works);
                }
                if totals.is_before(*base) {
                    *base = totals;
                }
                let syns = totals.unexplained_since(*base);
                if syns == 0 {
                    return None;
                }
                if now.saturating_sub(*since.get_or_insert(now)) < TRIAL {
                    return None;
                }
                let pause = (*pause * 2).min(PAUSE_MAX);
                Some(self.lose(now, syns, pause))
            }
        }
    }

    fn lose(&mut self, now: Duration, syns: u64, pause: Duration) -> Change {
        self.0 = State::Lost {
            until: now + pause,
            pause,
        };
        Change::Lost { syns, pause }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn totals(redirected: u64, aborted: u64, accepted: u64) -> Totals {
        Totals {
            redirected,
            aborted,
            accepted,
        }
    }

    #[test]
    fn three_syns_in_ten_seconds_without_a_flow_are_a_loss() {
        let mut it = Redirection::new(totals(7, 0, 4));
        assert_eq!(it.observe(s(0), totals(8, 0, 4)), None);
        assert_eq!(it.observe(s(9), totals(11, 0, 4)), None);
        let lost = Change::Lost {
            syns: 4,
            pause: PAUSE_MIN,
        };
        assert_eq!(it.observe(s(10), totals(11, 0, 4)), Some(lost));
        assert!(it.is_lost() && it.is_in_doubt());
    }

    #[test]
    fn one_flow_shows_that_it_works() {
        let mut it = Redirection::new(totals(0, 0, 0));
        for second in 0..100 {
            let accepted = second / 9;
            assert_eq!(
                it.observe(s(second), totals(10 * second, 0, accepted)),
                None
            );
        }
    }

    #[test]
    fn two_syns_are_no_loss_and_are_forgotten() {
        let mut it = Redirection::new(totals(0, 0, 0));
        for second in 0..600 {
            // A host that tries once a minute.
            assert_eq!(it.observe(s(second), totals(second / 60, 0, 0)), None);
        }
    }

    #[test]
    fn scans_of_which_hosts_abort_the_handshakes_are_no_loss() {
        let mut it = Redirection::new(totals(0, 0, 0));
        for second in 0..100 {
            assert_eq!(
                it.observe(s(second), totals(5 * second, 5 * second, 0)),
                None
            );
        }
    }

    #[test]
    fn trials_are_rarer_and_rarer_until_one_works() {
        let mut it = Redirection::new(totals(0, 0, 0));
        it.observe(s(0), totals(3, 0, 0));
        let mut pause = PAUSE_MIN;
        let mut now = s(10);
        let mut syns = 3;
        let lost = it.observe(now, totals(syns, 0, 0));
        assert_eq!(lost, Some(Change::Lost { syns, pause }));
        for _ in 0..8 {
            assert_eq!(it.observe(now + pause - s(1), totals(syns, 0, 0)), None);
            now += pause;
            assert_eq!(it.observe(now, totals(syns, 0, 0)), Some(Change::Trial));
            assert!(!it.is_lost() && it.is_in_doubt());
            // Without SYNs nothing follows.
            now += s(50);
            assert_eq!(it.observe(now, totals(syns, 0, 0)), None);
            syns += 1;
            assert_eq!(it.observe(now, totals(syns, 0, 0)), None);
            now += TRIAL;
            pause = (pause * 2).min(PAUSE_MAX);
            let lost = it.observe(now, totals(syns, 0, 0));
            assert_eq!(lost, Some(Change::Lost { syns: 1, pause }));
        }
        assert_eq!(pause, PAUSE_MAX);
        it.hurry(now);
        assert_eq!(it.observe(now, totals(syns, 0, 0)), Some(Change::Trial));
        assert_eq!(it.observe(now, totals(syns + 1, 0, 1)), Some(Change::Works));
        assert!(!it.is_in_doubt());
        assert_eq!(it.observe(now + s(20), totals(syns + 1, 0, 1)), None);
    }

    #[test]
    fn counter_resets_are_no_loss() {
        let mut it = Redirection::new(totals(1000, 0, 10));
        assert_eq!(it.observe(s(0), totals(2, 0, 10)), None);
        assert_eq!(it.observe(s(20), totals(2, 0, 10)), None);
    }
}
