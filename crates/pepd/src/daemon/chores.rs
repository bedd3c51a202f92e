//! Periodic tasks, every second.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    time::{Duration, Instant},
};

use nix::{errno::Errno, net::if_::if_nametoindex};
use pep_core::{
    config::{Config, IfName},
    site::{Clear, Mode},
};
use pepd_intercept::{InterceptError, Interception, upkeep::Trouble};
use pepd_relay::flow::FlowContext;
use pepd_sys::{gate::Gate, leg::Family, log, privileges};

use super::spare::Spare;

/// Number of slots cleaned at once: some milliseconds of work.
const SWEEP: usize = 1024;

/// Time after which another program's repeated change of the same policy rule is logged again.
const AGAIN: Duration = Duration::from_secs(600);
/// A change within this time after the last one belongs to the same contest.
const CONTEST: Duration = Duration::from_secs(30);

/// Releases the pages of some slots that no flow uses.
pub(super) fn sweep(context: &FlowContext) {
    context.arena.sweep(SWEEP);
}

/// Number of its changes that are logged before.
const BEGINNING: u32 = 3;

/// Policy rule of another program that comes before pepd's again and again.
#[derive(Debug, Clone, Copy)]
struct Contest {
    seen: Instant,
    logged: Instant,
    times: u32,
}

/// State of the periodic tasks.
#[derive(Debug, Default)]
pub(super) struct Chores {
    /// Number of flows accepted up to the last run, if there was one.
    accepted: Option<u64>,
    /// True if the process has been idle since code was last unmapped.
    code_unmapped: bool,
    /// Lasting troubles that have been logged.
    reported: BTreeSet<Trouble>,
    /// Contests about the first place, by family and the table to which the other rule leads.
    contests: BTreeMap<(Family, String), Contest>,
    /// Lines of the log known to be lost.
    lost_lines: u64,
    /// Interfaces of hosts that do not exist.
    lan_gone: BTreeSet<IfName>,
    /// True while conntrack has little room left.
    conntrack_full: bool,
}

/// Result of a check of everything installed.
#[derive(Debug, Default)]
pub(super) struct Looked {
    /// False if nothing has changed since the last check.
    pub checked: bool,
    /// True if something was restored: redirected SYNs may arrive again.
    pub mended: bool,
    /// Families whose SYNs, answered at once by listeners, cannot arrive.
    pub undelivered: BTreeSet<Family>,
    /// Families of which the kernel delivers no redirected packets, and pepd cannot change that.
    pub broken: BTreeSet<Family>,
}

impl Chores {
    /// Updates admission, memory and the log.
    pub(super) fn tidy(&mut self, context: &FlowContext, config: &Config) {
        context.admission.on_tick(context.next_flow_fits());
        sweep(context);
        privileges::follow_core_limit();
        self.log_lost_lines();
        self.follow_lan(config);
        self.follow_conntrack();
        self.unmap_when_quiet(context.counters.snapshot().flows_accepted);
    }

    /// Logs the number of lost lines; if that line is lost too, it is repeated.
    fn log_lost_lines(&mut self) {
        let lost = log::lost();
        if lost > self.lost_lines {
            self.lost_lines = lost;
            tracing::warn!(lost, "lines of the log were lost: its reader was too slow");
        }
    }

    /// Logs interfaces of hosts that go and come back.
    fn follow_lan(&mut self, config: &Config) {
        let sites = config.sites.iter().map(|(_, site)| site);
        let unprotected =
            sites.filter(|site| site.mode == Mode::Tunnel && site.clear != Clear::Never);
        let names: Vec<_> = unprotected.map(|site| site.name.as_str()).collect();
        let sites = names.join(", ");
        for name in &config.intercept.lan {
            let is_gone = if_nametoindex(name.as_str()) == Err(Errno::ENODEV);
            if is_gone == self.lan_gone.contains(name) {
                continue;
            }
            let interface = name.as_str();
            if is_gone {
                self.lan_gone.insert(name.clone());
                if sites.is_empty() {
                    tracing::warn!(
                        interface,
                        "an interface of `intercept.lan` is gone or renamed: connections of its hosts are not accelerated"
                    );
                } else {
                    tracing::error!(
                        interface,
                        sites,
                        "UNPROTECTED: an interface of `intercept.lan` is gone or renamed: connections of its hosts leave \
                         in the clear, not by the tunnel of these sites (`clear = \"never\"` would drop them)"
                    );
                }
            } else {
                self.lan_gone.remove(name);
                tracing::info!(interface, "an interface of `intercept.lan` is back");
            }
        }
    }

    /// Logs that the kernel has little room for connections that it tracks.
    fn follow_conntrack(&mut self) {
        let number = |name| pepd_sys::sysctl(name)?.parse::<u64>().ok();
        let count = number("net/netfilter/nf_conntrack_count");
        let Some((count, most)) = count.zip(number("net/netfilter/nf_conntrack_max")) else {
            return;
        };
        let is_full = is_nearly_full(count, most, self.conntrack_full);
        if is_full == std::mem::replace(&mut self.conntrack_full, is_full) {
            return;
        }
        if is_full {
            tracing::error!(
                count,
                most,
                "conntrack is nearly full: when full, the kernel drops new connections, pepd's to servers too; raise \
                 net.netfilter.nf_conntrack_max, or stop a flood of connections"
            );
        } else {
            tracing::info!(count, most, "conntrack has room again");
        }
    }

    /// Unmaps code that only the start, or new flows, need, a second after its last use.
    fn unmap_when_quiet(&mut self, accepted: u64) {
        let quiet = self.accepted.replace(accepted) == Some(accepted);
        if quiet
            && !self.code_unmapped
            && let Err(err) = pepd_sys::memory::unmap_idle_code()
        {
            tracing::debug!(error = %err, "idle code stays mapped");
        }
        self.code_unmapped = quiet;
    }

    /// Checks what was installed, and restores it after changes by other programs: hosts would lose
    /// acceleration, or connections.
    pub(super) async fn look_after(
        &mut self,
        interception: &mut Interception,
        gate: Gate,
        spare: &mut Spare,
    ) -> Looked {
        let troubles = match interception.troubles().await {
            Ok(Some(troubles)) => BTreeSet::from_iter(troubles),
            Ok(None) => return Looked::default(),
            Err(err) => {
                let error = &err as &dyn Error;
                tracing::debug!(error, "cannot check the installed rules");
                return Looked {
                    checked: true,
                    ..Looked::default()
                };
            }
        };
        let is_on_again =
            self.reported.contains(&Trouble::Off) && !troubles.contains(&Trouble::Off);
        self.reported.retain(|trouble| troubles.contains(trouble));
        let mut troubles = troubles;
        if is_on_again {
            // All missing parts of IPv6 have the same cause.
            troubles.retain(|trouble| !matches!(trouble, Trouble::Undelivered(Family::V6, _)));
            troubles.insert(Trouble::Routing(Family::V6));
        }
        let mut looked = Looked {
            checked: true,
            ..Looked::default()
        };
        for trouble in troubles {
            spare.release();
            let result = interception.restore(&trouble, gate).await;
            spare.fill();
            looked.mended |= result.is_ok() && !trouble.is_for_operators();
            if let Trouble::Routing(family)
            | Trouble::Behind(family, _)
            | Trouble::Stuck(family, _)
            | Trouble::Undelivered(family, _) = &trouble
                && result.is_err()
            {
                looked.broken.insert(*family);
            }
            if let Trouble::Bridge(family, _) = &trouble {
                looked.undelivered.insert(*family);
            }
            self.log_dropped(&trouble, result, is_on_again);
        }
        looked
    }

    fn log_dropped(
        &mut self,
        trouble: &Trouble,
        result: Result<&'static str, InterceptError>,
        is_on_again: bool,
    ) {
        match result {
            Ok(_) if trouble.is_for_operators() => {
                if self.reported.insert(trouble.clone()) {
                    tracing::warn!("{trouble}");
                }
            }
            Ok(_) if is_on_again && *trouble == Trouble::Routing(Family::V6) => {
                tracing::info!("IPv6 is switched on again: pepd takes IPv6 connections again");
            }
            Ok(done) if matches!(trouble, Trouble::Displaced(_)) => {
                tracing::debug!("{trouble}: {done}");
            }
            Ok(_) if !self.is_news(trouble, Instant::now()) => {}
            Ok(done) => tracing::warn!(
                "{trouble}: {done}; meanwhile hosts had no acceleration, or no connections"
            ),
            Err(err) => {
                let error = &err as &dyn Error;
                if self.reported.insert(trouble.clone()) {
                    tracing::error!(error, "{trouble}: cannot fix it, retrying every second");
                }
            }
        }
    }

    /// Returns false for a policy rule that comes before pepd's each time pepd moves ahead of it,
    /// unless that was not logged for a while.
    fn is_news(&mut self, trouble: &Trouble, now: Instant) -> bool {
        let Trouble::Behind(family, rule) = trouble else {
            return true;
        };
        // Its number differs each time.
        let rule = rule.split_once(", ").map_or(&**rule, |(_, leads)| leads);
        let contest = (*family, rule.to_owned());
        self.contests
            .retain(|_, contest| now.duration_since(contest.seen) < CONTEST);
        let of_contest = self.contests.entry(contest).or_insert(Contest {
            seen: now,
            logged: now,
            times: 0,
        });
        of_contest.times += 1;
        of_contest.seen = now;
        let is_late = now.duration_since(of_contest.logged) >= AGAIN;
        let is_news = is_late || of_contest.times <= BEGINNING;
        if is_news {
            of_contest.logged = now;
        }
        is_news
    }
}

/// Returns whether so little room is left of `most` that `pepd check` reports it. A table that was
/// nearly full remains so until a fifth is free. A maximum of 0 is none.
const fn is_nearly_full(count: u64, most: u64, was: bool) -> bool {
    let limit = if was { most / 10 * 8 } else { most / 10 * 9 };
    most > 0 && count >= limit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conntrack_is_nearly_full_from_nine_tenths_on_until_a_fifth_is_free() {
        let full = |count, was| is_nearly_full(count, 1000, was);
        assert!(!full(899, false) && full(900, false));
        assert!(full(899, true) && full(800, true) && !full(799, true));
        assert!(!is_nearly_full(5, 0, true));
    }

    #[test]
    fn a_contest_about_the_first_place_is_soon_logged_once_in_ten_minutes() {
        let (mut chores, begin) = (Chores::default(), Instant::now());
        let behind = |rule: &str| Trouble::Behind(Family::V4, rule.to_owned());
        let one = behind("priority 98, table 77");
        let mut is_news = |trouble: &Trouble, second| {
            chores.is_news(trouble, begin + Duration::from_secs(second))
        };
        let logged: Vec<_> = (0..1300).filter(|second| is_news(&one, *second)).collect();
        assert_eq!(logged, [0, 1, 2, 602, 1202]);
        assert!(!is_news(&behind("priority 94, table 77"), 1301));
        assert!(is_news(&behind("priority 94, table 78"), 1301));
        // The contest has ended, and another one begins.
        assert!(is_news(&one, 1400));
        let removed = Trouble::Routing(Family::V4);
        assert!((0..3).all(|second| is_news(&removed, 1400 + second)));
    }
}
