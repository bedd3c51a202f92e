//! Watch for redirected SYNs that do not arrive, and the dead man's switch that then passes or
//! blocks connections.
//!
//! Unanswered SYNs only cause an inspection of rules and routes: a host can send SYNs that the
//! kernel drops.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, Read as _},
    sync::Arc,
    time::{Duration, Instant},
};

use pep_core::{
    config::{Config, RulesBy},
    redirection::{Change, Redirection, SYNS_MIN, Totals, Verdict},
    site::{InterceptionLoss, Mode, Site, SiteId},
};
use pepd_intercept::{
    Interception,
    lost::Lost,
    rules::{Counter, Family},
};
use pepd_relay::flow::FlowContext;
use pepd_sys::{leg::SiteRuntime, marks::MarkSet};

use tokio::{task::JoinHandle, time::timeout};

use crate::{
    diagnose::{self, Arrival},
    observe,
};

/// Maximum duration of an inspection. Rules that take longer to read count as unclear.
const INSPECTION: Duration = Duration::from_secs(10);
/// Time after which unanswered SYNs of a path are logged again.
const AGAIN: Duration = Duration::from_secs(600);

/// Path of redirected SYNs: to the listener of a site, for one family, or into a TUN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Path {
    Site(SiteId, Family),
    Held(Family),
}

/// The dead man's switch.
#[derive(Debug)]
pub(super) struct Redirected {
    config: Arc<Config>,
    watches: BTreeMap<Path, Redirection>,
    undelivered: BTreeSet<Family>,
    /// Families of which the kernel delivers no redirected packets.
    broken: BTreeSet<Family>,
    /// The inspection that runs, if one does.
    inspection: Option<JoinHandle<Arrival>>,
    /// Last log lines on SYNs that are not answered for no cause of this machine.
    refuted: BTreeMap<Path, Duration>,
    began: Instant,
    /// True if the log has a line about all connections passing by other routes.
    other_routes_logged: bool,
    /// SYNs that passed since their connections do not reach pepd, and the time of the last line.
    filtered: [(u64, Option<Duration>); 2],
    /// True if the last change of the rules failed.
    failed: bool,
}

impl Redirected {
    pub(super) fn new(config: &Arc<Config>) -> Self {
        Self {
            config: Arc::clone(config),
            watches: BTreeMap::new(),
            undelivered: BTreeSet::new(),
            broken: BTreeSet::new(),
            inspection: None,
            refuted: BTreeMap::new(),
            began: Instant::now(),
            other_routes_logged: false,
            filtered: [(0, None); 2],
            failed: false,
        }
    }

    /// Schedules an early retry: an obstacle was removed.
    pub(super) fn hurry(&mut self) {
        let now = self.began.elapsed();
        for watch in self.watches.values_mut() {
            watch.hurry(now);
        }
    }

    /// Sets the families whose SYNs, answered at once by sites, cannot arrive for a known cause: no
    /// retry.
    pub(super) fn cannot_arrive(&mut self, families: BTreeSet<Family>) {
        self.undelivered = families;
    }

    /// Sets the families whose redirected packets the kernel does not deliver, for a cause that
    /// pepd cannot remove.
    pub(super) fn are_not_delivered(&mut self, families: BTreeSet<Family>) {
        self.broken = families;
    }

    /// Checks the counters; call it every second. Failed changes of the rules are retried at the
    /// next check. Returns true if a loss has begun.
    pub(super) async fn check(
        &mut self,
        interception: &mut Interception,
        context: &FlowContext,
        sites: &[Arc<SiteRuntime>],
    ) -> bool {
        if !interception.has_new_counters() {
            return false;
        }
        let counters = match interception.counters() {
            Ok(counters) => counters,
            Err(err) => {
                let error = &err as &dyn std::error::Error;
                tracing::debug!(error, "cannot check the arrival of redirected SYNs");
                return false;
            }
        };
        let passed = Interception::passed_of(&counters);
        context
            .counters
            .update(|stats| observe::set_passed(stats, passed));
        let arrival = self.inspected().await;
        let changes = self.changes(&counters, context, sites, arrival.as_ref());
        self.inspect_if_suspected();
        if let Some(answers) = counters.get(Counter::AnsweredV6.name().as_ref()) {
            context.silence.on_count(*answers);
        }
        let other_routes = counters.get(Counter::PassedOtherRoute.name().as_ref());
        self.log_other_routes(other_routes.copied().unwrap_or(0), sites);
        let filtered = [Counter::PassedFiltered, Counter::Unsent];
        let filtered = filtered.map(|counter| counters.get(counter.name().as_ref()).copied());
        self.log_filtered(filtered.map(Option::unwrap_or_default));
        let lost = self.lost();
        for site in sites {
            for family in Family::ALL {
                let families = lost.get(&site.id);
                let is_lost = families.is_some_and(|families| families.contains(&family));
                site.site_counters.set_lost(family, is_lost);
            }
        }
        let set = interception.set_lost(&self.config, lost).await;
        if let Err(err) = &set
            && !self.failed
        {
            let error = err as &dyn std::error::Error;
            tracing::error!(
                error,
                "cannot let connections bypass an interception that fails: hosts wait; retrying"
            );
        }
        self.failed = set.is_err();
        let losses = changes.iter();
        let losses = losses.filter(|(_, change)| matches!(change, Change::Lost { .. }));
        let losses = losses.count() as u64;
        if losses > 0 {
            context
                .counters
                .update(|stats| stats.interception_losses += losses);
        }
        for (path, change) in changes {
            self.log(path, change);
        }
        losses > 0
    }

    /// Returns changes since the last check, from the counters of the rules and listeners.
    fn changes(
        &mut self,
        counters: &BTreeMap<String, u64>,
        context: &FlowContext,
        sites: &[Arc<SiteRuntime>],
        arrival: Option<&Arrival>,
    ) -> Vec<(Path, Change)> {
        let mut changes = Vec::new();
        let count = |counter: Counter| counters.get(counter.name().as_ref()).copied();
        for family in Family::ALL {
            let number = |counter| count(counter).unwrap_or(0);
            let unmatched = number(Counter::NoSource(family));
            let aborted = number(Counter::Aborted(family)) + unmatched;
            let invalid = invalid(family);
            let handshakes = number(Counter::Handshakes(family));
            for site in sites {
                let path = Path::Site(site.id, family);
                let Some(redirected) = count(Counter::Redirected(family, site.id)) else {
                    continue;
                };
                // The answer to a SYN proves arrival as well as a flow does: hosts may not complete
                // the handshake.
                let accepted = site.site_counters.arrived(family) + handshakes;
                let totals = Totals {
                    redirected,
                    aborted,
                    accepted,
                    invalid,
                };
                changes.extend(self.observe(path, totals, arrival));
            }
            // Of other sites only SYNs without a route enter a TUN, and other rules may drop them.
            let held = context.held.as_ref().filter(|_| self.config.defers());
            if let (Some(held), Some(redirected)) = (held, count(Counter::Held(family))) {
                let accepted = held.arrived(family);
                let totals = Totals {
                    redirected,
                    aborted: unmatched,
                    accepted,
                    invalid,
                };
                changes.extend(self.observe(Path::Held(family), totals, arrival));
            }
        }
        changes
    }

    /// Logs the state of losses when this process ends. The next one redirects all connections and
    /// knows of no loss.
    pub(super) fn conclude(
        &mut self,
        interception: &Interception,
        context: &FlowContext,
        sites: &[Arc<SiteRuntime>],
    ) {
        // Without counters nothing is logged.
        let Ok(counters) = interception.counters() else {
            return;
        };
        let changes = self.changes(&counters, context, sites, None);
        let changes = changes.into_iter();
        for (path, change) in changes.filter(|(_, change)| *change == Change::Works) {
            self.log(path, change);
        }
        let in_doubt = self.watches.iter();
        for (path, _) in in_doubt.filter(|(_, watch)| watch.is_in_doubt()) {
            let path = self.describe(*path);
            tracing::info!(
                "{path}: the next process redirects connections again, and logs an error if they do not arrive"
            );
        }
    }

    /// Logs when all connections pass by other routes: the configured link is wrong, or lies below
    /// a VPN's.
    fn log_other_routes(&mut self, passed: u64, sites: &[Arc<SiteRuntime>]) {
        let mut arrived = sites.iter().map(|site| site.site_counters.now().accepted);
        if self.other_routes_logged || passed < SYNS_MIN || arrived.any(|flows| flows > 0) {
            return;
        }
        self.other_routes_logged = true;
        let link = self.config.link.as_ref();
        let link = link.map_or("", |link| link.interface.as_str());
        tracing::warn!(
            syns = passed,
            "all connections pass unaccelerated: their routes do not lead by {link} (`link.interface`); \
             set it to that of the routes, or accelerate them: `link.other_routes = \"split\"`"
        );
    }

    /// Logs when rules of other programs drop packets of handshakes: of hosts or servers, whose
    /// connections then pass, or pepd's SYNs. Hosts can cause these lines: they are paced.
    fn log_filtered(&mut self, [passed, unsent]: [u64; 2]) {
        if let Some(syns) = self.more_filtered(0, passed) {
            tracing::warn!(
                syns,
                "connections pass unaccelerated whose packets another program's rules drop before they reach pepd (hook \
                 input: a closed port, a banned address); `pepd check` names such rules, and \
                 `nft list table inet {}` the connections (sets filtered_...)",
                self.config.intercept.table
            );
        }
        if let Some(syns) = self.more_filtered(1, unsent) {
            let marks = MarkSet::new(self.config.intercept.marks);
            tracing::warn!(
                syns,
                "another program's rules drop pepd's SYNs to servers (hook output), and hosts wait in vain: accept mark \
                 {:#010x}/{:#010x} there, unless you mean these connections; `pepd check` names such rules",
                marks.server_leg(),
                marks.mask()
            );
        }
    }

    /// Returns by how much a counter has grown since its last line, if another one is due.
    fn more_filtered(&mut self, line: usize, count: u64) -> Option<u64> {
        let now = self.began.elapsed();
        let (before, logged) = self.filtered[line];
        let is_due = logged.is_none_or(|at| now.saturating_sub(at) >= AGAIN);
        if count <= before || !is_due {
            // A new table resets the counter.
            self.filtered[line].0 = before.min(count);
            return None;
        }
        self.filtered[line] = (count, Some(now));
        Some(count - before)
    }

    /// Returns the result of an inspection that has ended.
    async fn inspected(&mut self) -> Option<Arrival> {
        let ended = self.inspection.take_if(|running| running.is_finished())?;
        Some(ended.await.unwrap_or(Arrival::UNCLEAR))
    }

    fn inspect_if_suspected(&mut self) {
        let is_needed = self.watches.values().any(Redirection::is_suspected);
        if is_needed && self.inspection.is_none() {
            let config = Arc::clone(&self.config);
            self.inspection = Some(tokio::spawn(async move {
                let inspection = timeout(INSPECTION, diagnose::arrival(&config));
                inspection.await.unwrap_or(Arrival::UNCLEAR)
            }));
        }
    }

    fn verdict(&self, path: Path, arrival: &Arrival) -> Verdict {
        let (found, family) = match path {
            Path::Site(site, family)
                if self.config.sites[site].is_deferred() || self.config.must_obey_forward() =>
            {
                (arrival.released, family)
            }
            Path::Site(_, family) => (arrival.at_once, family),
            Path::Held(family) => (arrival.held, family),
        };
        if self.broken.contains(&family) {
            return Verdict::Broken;
        }
        let found = match family {
            Family::V4 => found[0],
            Family::V6 => found[1],
        };
        // Without proof nothing leaves a tunnel, and nothing is blocked.
        let is_guarded = self.sites_of(path).any(|site| {
            site.mode == Mode::Tunnel || site.on_interception_loss == InterceptionLoss::Block
        });
        match found {
            Verdict::Unclear if is_guarded => Verdict::Sound,
            found => found,
        }
    }

    /// Returns the sites whose SYNs take a path.
    fn sites_of(&self, path: Path) -> impl Iterator<Item = &Site> {
        let sites = self.config.sites.iter();
        let sites = sites.filter(move |(id, site)| match path {
            Path::Site(one, _) => *id == one,
            Path::Held(_) => site.is_deferred(),
        });
        sites.map(|(_, site)| site)
    }

    fn observe(
        &mut self,
        path: Path,
        totals: Totals,
        arrival: Option<&Arrival>,
    ) -> Option<(Path, Change)> {
        let now = self.began.elapsed();
        let verdict = arrival.map(|arrival| self.verdict(path, arrival));
        let watch = self.watches.entry(path);
        let watch = watch.or_insert_with(|| Redirection::new(totals));
        Some((path, watch.observe(now, totals, verdict)?))
    }

    fn log(&mut self, path: Path, change: Change) {
        match change {
            Change::Suspected => {
                let path = self.describe(path);
                tracing::debug!("{path}: redirected SYNs are not answered; looking for the cause");
            }
            Change::Refuted { syns } => self.log_refuted(path, syns),
            Change::Lost { syns, pause } => self.log_interception_loss(path, syns, pause),
            Change::Trial => {
                let path = self.describe(path);
                tracing::info!("{path}: redirecting connections again as a test");
            }
            Change::Works => {
                let path = self.describe(path);
                tracing::info!("{path}: redirected connections arrive again");
            }
        }
    }

    /// Hosts can cause this line: it is paced.
    fn log_refuted(&mut self, path: Path, syns: u64) {
        let now = self.began.elapsed();
        let last = self.refuted.get(&path);
        if last.is_some_and(|last| now.saturating_sub(*last) < AGAIN) {
            return;
        }
        self.refuted.insert(path, now);
        let path = self.describe(path);
        tracing::warn!(
            syns,
            "{path}: redirected SYNs were not answered, and no rule or route drops them all: a host sends invalid \
             ones; if hosts cannot connect, see `pepd check`"
        );
    }

    fn log_interception_loss(&self, path: Path, syns: u64, pause: Duration) {
        let (described, pause) = (self.describe(path), pause.as_secs());
        let fate = self.fate(path);
        tracing::error!(
            syns,
            "{described}: redirected SYNs do not arrive, {fate}; next test in {pause} s; check firewall and policy \
             rules with `pepd check` (`syns` includes repeats)"
        );
    }

    fn describe(&self, path: Path) -> String {
        match path {
            Path::Site(site, family) => format!("site {}, {family}", self.config.sites[site].name),
            Path::Held(family) => format!("SYNs held for `syn = \"defer\"`, {family}"),
        }
    }

    fn fate(&self, path: Path) -> &'static str {
        if self.config.intercept.rules == RulesBy::Manual {
            return "new connections wait: pepd changes no rules (`intercept.rules`)";
        }
        let sites: Vec<_> = self.sites_of(path).collect();
        let blocks = sites
            .iter()
            .all(|site| site.on_interception_loss == InterceptionLoss::Block);
        let is_tunnelled = sites.iter().any(|site| site.mode == Mode::Tunnel);
        match (blocks, is_tunnelled) {
            (true, _) => "new connections are blocked (`on_interception_loss`)",
            (false, true) => {
                "new connections pass UNPROTECTED, outside the tunnel (`on_interception_loss`)"
            }
            (false, false) => "new connections pass unaccelerated",
        }
    }

    fn lost(&self) -> Lost {
        let mut lost = Lost::new();
        let sites = self.config.sites.iter();
        let at_once = sites.filter(|(_, site)| site.mode.takes_flows() && !site.is_deferred());
        for (site, _) in at_once.filter(|_| !self.undelivered.is_empty()) {
            lost.insert(site, self.undelivered.clone());
        }
        for (path, _) in self.watches.iter().filter(|(_, watch)| watch.is_lost()) {
            match *path {
                Path::Site(site, family) => {
                    lost.entry(site).or_default().insert(family);
                }
                Path::Held(family) => {
                    let sites = self.config.sites.iter();
                    for (site, _) in sites.filter(|(_, site)| site.is_deferred()) {
                        lost.entry(site).or_default().insert(family);
                    }
                }
            }
        }
        lost
    }
}

/// Returns the number of packets of a family that the kernel has dropped as invalid, and of TCP
/// segments of both families.
fn invalid(family: Family) -> u64 {
    // Read every second: a `String` that grows from nothing would cost a call for each step.
    let read = |name| -> io::Result<String> {
        let mut text = String::with_capacity(16 << 10);
        let mut file = fs::File::open(format!("/proc/thread-self/net/{name}"))?;
        file.read_to_string(&mut text)?;
        Ok(text)
    };
    let all = read("snmp").unwrap_or_default();
    let of_family = match family {
        Family::V4 => sum(&all, "Ip:", &["InHdrErrors", "InAddrErrors"]),
        Family::V6 => {
            let lines = read("snmp6").unwrap_or_default();
            let lines = lines.lines().filter_map(|line| {
                let (name, value) = line.split_once(char::is_whitespace)?;
                let is_one = matches!(name, "Ip6InHdrErrors" | "Ip6InAddrErrors");
                value.trim().parse::<u64>().ok().filter(|_| is_one)
            });
            lines.sum()
        }
    };
    of_family + sum(&all, "Tcp:", &["InErrs"])
}

/// Returns the sum of values in a table of `/proc/net/snmp`: a line of names, and one of numbers.
fn sum(text: &str, table: &str, wanted: &[&str]) -> u64 {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(table));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else {
        return 0;
    };
    let pairs = names.split_whitespace().zip(values.split_whitespace());
    let pairs = pairs.filter(|(name, _)| wanted.contains(name));
    pairs
        .filter_map(|(_, value)| value.parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_packets_are_counted_by_the_kernel() {
        let text = "Ip: Forwarding InHdrErrors InAddrErrors\nIp: 1 20 3\n\
                    Tcp: MaxConn InErrs\nTcp: -1 7\n";
        assert_eq!(sum(text, "Ip:", &["InHdrErrors", "InAddrErrors"]), 23);
        assert_eq!(sum(text, "Tcp:", &["InErrs"]), 7);
        assert_eq!(sum("Tcp: MaxConn InErrs\n", "Tcp:", &["InErrs"]), 0);
        let own = fs::read_to_string("/proc/thread-self/net/snmp").expect("a /proc");
        assert!(own.contains(" InHdrErrors InAddrErrors ") && own.contains(" InErrs "));
    }
}
