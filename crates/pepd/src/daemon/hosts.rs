//! Hosts that have reached their flow limit: the packet filter forwards their new flows.

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

/// Minimum time between two transactions of the packet filter: bounds the load by a host that opens
/// and closes flows rapidly.
const PAUSE: Duration = Duration::from_millis(100);

/// Minimum time between two log lines about a host.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// Maximum number of hosts logged in that time.
const LOGGED_MAX: usize = 32;

/// Hosts at their flow limit, and pending log lines.
#[derive(Debug)]
pub(super) struct HostsAtCap {
    wanted: watch::Receiver<BTreeSet<Host>>,
    not_before: Instant,
    /// True if the last update of the packet filter failed.
    failed: bool,
    reported: LoggedHosts,
}

impl HostsAtCap {
    pub(super) fn new(admission: &Admission) -> Self {
        Self {
            wanted: admission.watch_hosts(),
            not_before: Instant::now(),
            failed: false,
            reported: LoggedHosts::default(),
        }
    }

    /// Waits until the set has changed. Cancel-safe.
    pub(super) async fn next(&mut self) -> BTreeSet<Host> {
        sleep_until(self.not_before).await;
        if self.wanted.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        self.wanted.borrow_and_update().clone()
    }

    /// Returns the set to retry after a failed update.
    pub(super) fn again(&mut self) -> Option<BTreeSet<Host>> {
        self.failed.then(|| self.wanted.borrow_and_update().clone())
    }

    /// Records an update of the packet filter, and logs new hosts.
    pub(super) fn on_filter_updated(&mut self, hosts: &BTreeSet<Host>, admission: &Admission) {
        (self.failed, self.not_before) = (false, Instant::now() + PAUSE);
        let most = admission.cap_per_host();
        let (lines, more) = self.reported.news(hosts, Instant::now());
        for host in lines {
            tracing::warn!(
                %host,
                most,
                "host reached limits.flows_per_host: its new flows pass unaccelerated"
            );
        }
        if more > 0 {
            tracing::warn!(
                more,
                "further hosts reached limits.flows_per_host: `pepd status` lists them; raise the limit if they need more"
            );
        }
    }

    /// Records a failed update.
    pub(super) fn on_failed(&mut self) {
        (self.failed, self.not_before) = (true, Instant::now() + PAUSE);
    }
}

/// Hosts with the time of their last log line.
#[derive(Debug, Default)]
struct LoggedHosts(BTreeMap<Host, Instant>);

impl LoggedHosts {
    /// Returns the hosts to log now, and the number of further ones that are not.
    fn news(&mut self, hosts: &BTreeSet<Host>, now: Instant) -> (Vec<Host>, usize) {
        self.0
            .retain(|_, reported| now.saturating_duration_since(*reported) < LOG_EVERY);
        let new = hosts.iter().filter(|host| !self.0.contains_key(host));
        let mut new: Vec<Host> = new.copied().collect();
        let room = LOGGED_MAX.saturating_sub(self.0.len());
        let more = new.len().saturating_sub(room);
        new.truncate(room);
        self.0.extend(new.iter().map(|host| (*host, now)));
        // Without any room it was logged before.
        (new, if room > 0 { more } else { 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_is_logged_once_a_minute_and_a_limited_number() {
        let host =
            |number: u16| Host::from_address([10, 0, (number >> 8) as u8, number as u8].into());
        let (mut reported, now) = (LoggedHosts::default(), Instant::now());
        let one = BTreeSet::from([host(0)]);
        assert_eq!(reported.news(&one, now), (vec![host(0)], 0));
        assert_eq!(reported.news(&one, now + LOG_EVERY / 2), (vec![], 0));
        let many: BTreeSet<_> = (0..1000).map(host).collect();
        let (lines, more) = reported.news(&many, now + LOG_EVERY / 2);
        assert_eq!((lines.len(), more), (LOGGED_MAX - 1, 1000 - LOGGED_MAX));
        assert_eq!(reported.news(&many, now + LOG_EVERY / 2), (vec![], 0));
        assert_eq!(reported.news(&one, now + LOG_EVERY), (vec![host(0)], 0));
        assert_eq!(reported.0.len(), LOGGED_MAX);
    }
}
