//! Detection of lost redirection: SYNs that pepd's rules redirect, and that no listener accepts.
//!
//! Another program's firewall, policy rule or sysctl may drop packets that pepd's rules redirect.
//! Hosts then have no connections at all, and pepd sees nothing. So pepd compares redirected SYNs
//! with accepted flows: many SYNs and no flow is a reason to suspect a loss.
//!
//! It is no proof. A host can send SYNs that rules redirect and the kernel drops: with a wrong
//! checksum, for example. So the caller then inspects rules and routes, which no host controls, and
//! only its [verdict](Verdict) makes a loss.
//!
//! ```text
//!             3 SYNs in 10 s,              broken               after 30 s, doubling up to 10 min
//!             none accepted               or unclear
//!   Working ------------------> Suspected ----------> Lost ---------------------> Trial
//!      ^                        |       ^                                          |  |
//!      |------ sound, accepted -'       '------ a SYN, 5 s old, none accepted -----'  |
//!      '------------------------------------------------- one is accepted ------------'
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
    /// Invalid packets that the kernel dropped, of SYNs and others.
    pub invalid: u64,
}

impl Totals {
    /// SYNs since `earlier` that were redirected and are not otherwise accounted for.
    fn unexplained_since(self, earlier: Self) -> u64 {
        let redirected = self.redirected.saturating_sub(earlier.redirected);
        redirected.saturating_sub(self.aborted.saturating_sub(earlier.aborted))
    }

    /// As [`Self::unexplained_since`], if all packets that were invalid were SYNs.
    fn valid_since(self, earlier: Self) -> u64 {
        let invalid = self.invalid.saturating_sub(earlier.invalid);
        self.unexplained_since(earlier).saturating_sub(invalid)
    }

    /// True where a counter was reset: the rules were installed again.
    fn is_before(self, earlier: Self) -> bool {
        self.redirected < earlier.redirected || self.aborted < earlier.aborted
    }
}

/// Result of an inspection of everything that can break redirection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Nothing drops redirected SYNs.
    Sound,
    /// Some rules cannot be read or evaluated: they may drop all redirected SYNs, or some.
    Unclear,
    /// Redirected SYNs cannot arrive.
    Broken,
}

/// A change that the caller acts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// SYNs were not answered: the caller inspects rules and routes, and passes its verdict.
    Suspected,
    /// The verdict was that SYNs arrive: those not answered are a host's own fault.
    Refuted {
        /// SYNs that were redirected, but neither answered nor accepted.
        syns: u64,
    },
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
        /// No suspicion before, as the last one was refuted.
        rest: Duration,
    },
    Suspected {
        base: Totals,
        /// Pause before the next trial after a loss.
        pause: Duration,
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
        Self(State::Working {
            base,
            since: None,
            rest: Duration::ZERO,
        })
    }

    /// Reports whether redirection has to be off now.
    pub const fn is_lost(&self) -> bool {
        matches!(self.0, State::Lost { .. })
    }

    /// True while a loss may last: redirection is off, or on trial.
    pub const fn is_in_doubt(&self) -> bool {
        matches!(self.0, State::Lost { .. } | State::Trial { .. })
    }

    /// True while the caller has to inspect rules and routes.
    pub const fn is_suspected(&self) -> bool {
        matches!(self.0, State::Suspected { .. })
    }

    /// Brings the trial forward, as the obstacle may have gone.
    pub fn hurry(&mut self, now: Duration) {
        if let State::Lost { until, .. } = &mut self.0 {
            *until = now;
        }
    }

    /// Takes the totals at `now`, counted from a fixed arbitrary moment, and the verdict of an
    /// inspection that has ended. The caller calls it every few seconds.
    pub fn observe(
        &mut self,
        now: Duration,
        totals: Totals,
        verdict: Option<Verdict>,
    ) -> Option<Change> {
        match &mut self.0 {
            State::Working { base, since, rest } => {
                if totals.accepted > base.accepted || totals.is_before(*base) {
                    self.0 = Self::new(totals).0;
                    return None;
                }
                let syns = totals.unexplained_since(*base);
                if syns == 0 {
                    return None;
                }
                let waited = now.saturating_sub(*since.get_or_insert(now));
                if waited >= PATIENCE && syns >= SYNS_MIN && now >= *rest {
                    let (base, pause) = (*base, PAUSE_MIN);
                    self.0 = State::Suspected { base, pause };
                    return Some(Change::Suspected);
                }
                if waited >= STALE {
                    self.0 = Self::new(totals).0;
                }
                None
            }
            State::Suspected { base, pause } => {
                if totals.accepted > base.accepted || totals.is_before(*base) {
                    // After a trial the loss is over; otherwise there was none.
                    let was_lost = *pause > PAUSE_MIN;
                    self.0 = Self::new(totals).0;
                    return was_lost.then_some(Change::Works);
                }
                let syns = totals.unexplained_since(*base);
                let is_lost = match verdict? {
                    Verdict::Broken => true,
                    Verdict::Unclear => totals.valid_since(*base) >= SYNS_MIN.min(syns),
                    Verdict::Sound => false,
                };
                if is_lost {
                    let pause = *pause;
                    return Some(self.lose(now, syns, pause));
                }
                self.0 = State::Working {
                    base: totals,
                    since: None,
                    rest: now + PAUSE_MIN,
                };
                Some(Change::Refuted { syns })
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
                let (base, pause) = (*base, (*pause * 2).min(PAUSE_MAX));
                self.0 = State::Suspected { base, pause };
                Some(Change::Suspected)
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
            invalid: 0,
        }
    }

    const BROKEN: Option<Verdict> = Some(Verdict::Broken);

    #[test]
    fn three_syns_in_ten_seconds_without_a_flow_are_a_loss_if_an_inspection_confirms_it() {
        let mut it = Redirection::new(totals(7, 0, 4));
        assert_eq!(it.observe(s(0), totals(8, 0, 4), BROKEN), None);
        assert_eq!(it.observe(s(9), totals(11, 0, 4), BROKEN), None);
        let suspected = it.observe(s(10), totals(11, 0, 4), None);
        assert_eq!(suspected, Some(Change::Suspected));
        assert_eq!(it.observe(s(11), totals(11, 0, 4), None), None);
        assert!(it.is_suspected() && !it.is_lost());
        let lost = Change::Lost {
            syns: 4,
            pause: PAUSE_MIN,
        };
        assert_eq!(it.observe(s(12), totals(11, 0, 4), BROKEN), Some(lost));
        assert!(it.is_lost() && it.is_in_doubt());
    }

    #[test]
    fn one_flow_shows_that_it_works() {
        let mut it = Redirection::new(totals(0, 0, 0));
        for second in 0..100 {
            let accepted = second / 9;
            let seen = totals(10 * second, 0, accepted);
            assert_eq!(it.observe(s(second), seen, BROKEN), None);
        }
        for second in 100..120 {
            it.observe(s(second), totals(10 * second, 0, 11), None);
        }
        assert!(it.is_suspected());
        assert_eq!(it.observe(s(120), totals(1200, 0, 12), BROKEN), None);
        assert!(!it.is_suspected() && !it.is_lost());
    }

    #[test]
    fn syns_that_a_host_makes_the_kernel_drop_are_no_loss_however_often() {
        let mut it = Redirection::new(totals(0, 0, 0));
        let (mut suspicions, mut verdict) = (0, None);
        for second in 0..600 {
            let change = it.observe(s(second), totals(5 * second, 0, 0), verdict);
            assert!(!it.is_lost() && !it.is_in_doubt());
            suspicions += u64::from(change == Some(Change::Suspected));
            verdict = (change == Some(Change::Suspected)).then_some(Verdict::Sound);
        }
        // Each costs an inspection.
        assert!((10..=600 / 30).contains(&suspicions), "{suspicions}");
    }

    #[test]
    fn where_rules_are_unclear_only_valid_syns_count() {
        for (invalid, is_lost) in [(0, true), (2, true), (3, false), (5, false)] {
            let mut it = Redirection::new(totals(0, 0, 0));
            let seen = Totals {
                invalid,
                ..totals(5, 0, 0)
            };
            it.observe(s(0), seen, None);
            it.observe(s(10), seen, None);
            it.observe(s(11), seen, Some(Verdict::Unclear));
            assert_eq!(it.is_lost(), is_lost, "{invalid}");
        }
    }

    #[test]
    fn a_host_does_not_prolong_a_loss_that_is_over() {
        let mut it = Redirection::new(totals(0, 0, 0));
        it.observe(s(0), totals(3, 0, 0), None);
        it.observe(s(10), totals(3, 0, 0), None);
        it.observe(s(11), totals(3, 0, 0), BROKEN);
        assert!(it.is_lost());
        let trial = it.observe(s(41), totals(3, 0, 0), None);
        assert_eq!(trial, Some(Change::Trial));
        it.observe(s(42), totals(4, 0, 0), None);
        let suspected = it.observe(s(47), totals(4, 0, 0), None);
        assert_eq!(suspected, Some(Change::Suspected));
        let refuted = it.observe(s(48), totals(4, 0, 0), Some(Verdict::Sound));
        assert_eq!(refuted, Some(Change::Refuted { syns: 1 }));
        assert!(!it.is_lost() && !it.is_in_doubt());
    }

    #[test]
    fn two_syns_are_no_loss_and_are_forgotten() {
        let mut it = Redirection::new(totals(0, 0, 0));
        for second in 0..600 {
            // A host that tries once a minute.
            assert_eq!(it.observe(s(second), totals(second / 60, 0, 0), None), None);
        }
    }

    #[test]
    fn scans_of_which_hosts_abort_the_handshakes_are_no_loss() {
        let mut it = Redirection::new(totals(0, 0, 0));
        for second in 0..100 {
            assert_eq!(
                it.observe(s(second), totals(5 * second, 5 * second, 0), None),
                None
            );
        }
    }

    #[test]
    fn trials_are_rarer_and_rarer_until_one_works() {
        let mut it = Redirection::new(totals(0, 0, 0));
        it.observe(s(0), totals(3, 0, 0), None);
        let mut pause = PAUSE_MIN;
        let mut now = s(10);
        let mut syns = 3;
        it.observe(now, totals(syns, 0, 0), None);
        let lost = it.observe(now, totals(syns, 0, 0), BROKEN);
        assert_eq!(lost, Some(Change::Lost { syns, pause }));
        for _ in 0..8 {
            assert_eq!(
                it.observe(now + pause - s(1), totals(syns, 0, 0), None),
                None
            );
            now += pause;
            assert_eq!(
                it.observe(now, totals(syns, 0, 0), None),
                Some(Change::Trial)
            );
            assert!(!it.is_lost() && it.is_in_doubt());
            // Without SYNs nothing follows.
            now += s(50);
            assert_eq!(it.observe(now, totals(syns, 0, 0), None), None);
            syns += 1;
            assert_eq!(it.observe(now, totals(syns, 0, 0), None), None);
            now += TRIAL;
            pause = (pause * 2).min(PAUSE_MAX);
            it.observe(now, totals(syns, 0, 0), None);
            let lost = it.observe(now, totals(syns, 0, 0), BROKEN);
            assert_eq!(lost, Some(Change::Lost { syns: 1, pause }));
        }
        assert_eq!(pause, PAUSE_MAX);
        it.hurry(now);
        assert_eq!(
            it.observe(now, totals(syns, 0, 0), None),
            Some(Change::Trial)
        );
        assert_eq!(
            it.observe(now, totals(syns + 1, 0, 1), None),
            Some(Change::Works)
        );
        assert!(!it.is_in_doubt());
        assert_eq!(it.observe(now + s(20), totals(syns + 1, 0, 1), None), None);
    }

    #[test]
    fn counter_resets_are_no_loss() {
        let mut it = Redirection::new(totals(1000, 0, 10));
        assert_eq!(it.observe(s(0), totals(2, 0, 10), None), None);
        assert_eq!(it.observe(s(20), totals(2, 0, 10), None), None);
    }
}
