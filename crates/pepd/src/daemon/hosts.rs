//! Hosts that have as many flows as one may have: the packet filter is told to forward their new ones.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use pep_core::hosts::Host;
use pepd_relay::limits::Admission;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

/// Between two transactions of the packet filter on their account: a host that opens and closes flows as fast as it can takes no more of
/// this machine than that.
const PAUSE: Duration = Duration::from_millis(100);

/// Each of them is told of so often at most.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// So many of them are told of in that time.
const LOGGED_MAX: usize = 32;

/// Which hosts these are, and what is still to be told of them.
#[derive(Debug)]
pub(super) struct HostsAtCap {
    wanted: watch::Receiver<BTreeSet<Host>>,
    not_before: Instant,
    /// The packet filter does not know them.
    failed: bool,
    told: LoggedHosts,
}

impl HostsAtCap {
    pub(super) fn new(admission: &Admission) -> Self {
        Self {
            wanted: admission.watch_hosts(),
            not_before: Instant::now(),
            failed: false,
            told: LoggedHosts::default(),
        }
    }

    /// When they have changed. May be dropped at any time.
    pub(super) async fn next(&mut self) -> BTreeSet<Host> {
        sleep_until(self.not_before).await;
        if self.wanted.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        self.wanted.borrow_and_update().clone()
    }

    /// Those that the packet filter should have been told of, where that has failed.
    pub(super) fn again(&mut self) -> Option<BTreeSet<Host>> {
        self.failed.then(|| self.wanted.borrow_and_update().clone())
    }

    /// The packet filter was told of them.
    pub(super) fn on_filter_updated(&mut self, hosts: &BTreeSet<Host>, admission: &Admission) {
        (self.failed, self.not_before) = (false, Instant::now() + PAUSE);
        let most = admission.cap_per_host();
        let (lines, more) = self.told.news(hosts, Instant::now());
        for host in lines {
            tracing::warn!(
                %host,
                most,
                "a host has as many flows as one may have (limits.flows_per_host): its new ones pass unaccelerated until it has fewer"
            );
        }
        if more > 0 {
            tracing::warn!(more, "further hosts have as many, `pepd status` lists them");
        }
    }

    /// It could not be told.
    pub(super) fn on_failed(&mut self) {
        (self.failed, self.not_before) = (true, Instant::now() + PAUSE);
    }
}

/// Who was told of when.
#[derive(Debug, Default)]
struct LoggedHosts(BTreeMap<Host, Instant>);

impl LoggedHosts {
    /// Of whom to tell now, and of how many others there is nothing said in turn.
    fn news(&mut self, hosts: &BTreeSet<Host>, now: Instant) -> (Vec<Host>, usize) {
        self.0
            .retain(|_, told| now.saturating_duration_since(*told) < LOG_EVERY);
        let new = hosts.iter().filter(|host| !self.0.contains_key(host));
        let mut new: Vec<Host> = new.copied().collect();
        let room = LOGGED_MAX.saturating_sub(self.0.len());
        let more = new.len().saturating_sub(room);
        new.truncate(room);
        self.0.extend(new.iter().map(|host| (*host, now)));
        // Where there is no room at all it was said before.
        (new, if room > 0 { more } else { 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_told_of_once_a_minute_and_not_all_of_very_many() {
        let host =
            |number: u16| Host::from_address([10, 0, (number >> 8) as u8, number as u8].into());
        let (mut told, now) = (LoggedHosts::default(), Instant::now());
        let one = BTreeSet::from([host(0)]);
        assert_eq!(told.news(&one, now), (vec![host(0)], 0));
        assert_eq!(told.news(&one, now + LOG_EVERY / 2), (vec![], 0));
        let many: BTreeSet<_> = (0..1000).map(host).collect();
        let (lines, more) = told.news(&many, now + LOG_EVERY / 2);
        assert_eq!((lines.len(), more), (LOGGED_MAX - 1, 1000 - LOGGED_MAX));
        assert_eq!(told.news(&many, now + LOG_EVERY / 2), (vec![], 0));
        assert_eq!(told.news(&one, now + LOG_EVERY), (vec![host(0)], 0));
        assert_eq!(told.0.len(), LOGGED_MAX);
    }
}
