//! Watch for redirected SYNs that do not arrive, and the dead man's switch that then passes or
//! blocks connections.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use pep_core::{
    config::{Config, RulesBy},
    redirection::{Change, Redirection, SYNS_MIN, Totals},
    site::{InterceptionLoss, Mode, SiteId},
};
use pepd_intercept::{
    Interception,
    lost::Lost,
    rules::{Counter, Family},
};
use pepd_relay::flow::FlowContext;
use pepd_sys::leg::SiteRuntime;

use crate::observe;

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
    began: Instant,
    /// True if the log has a line about all connections passing by other routes.
    other_routes_logged: bool,
    /// True if the last change of the rules failed.
    failed: bool,
}

impl Redirected {
    pub(super) fn new(config: &Arc<Config>) -> Self {
        Self {
            config: Arc::clone(config),
            watches: BTreeMap::new(),
            undelivered: BTreeSet::new(),
            began: Instant::now(),
            other_routes_logged: false,
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
        let changes = self.changes(&counters, context, sites);
        if let Some(answers) = counters.get(Counter::AnsweredV6.name().as_ref()) {
            context.silence.on_count(*answers);
        }
        let other_routes = counters.get(Counter::PassedOtherRoute.name().as_ref());
        self.log_other_routes(other_routes.copied().unwrap_or(0), sites);
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
    ) -> Vec<(Path, Change)> {
        let mut changes = Vec::new();
        let count = |counter: Counter| counters.get(counter.name().as_ref()).copied();
        for family in Family::ALL {
            let number = |counter| count(counter).unwrap_or(0);
            let unmatched = number(Counter::NoSource(family));
            let aborted = number(Counter::Aborted(family)) + unmatched;
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
                };
                changes.extend(self.observe(path, totals));
            }
            if let (Some(held), Some(redirected)) = (&context.held, count(Counter::Held(family))) {
                let accepted = held.arrived(family);
                let totals = Totals {
                    redirected,
                    aborted: unmatched,
                    accepted,
                };
                changes.extend(self.observe(Path::Held(family), totals));
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
        let changes = self.changes(&counters, context, sites).into_iter();
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

    fn observe(&mut self, path: Path, totals: Totals) -> Option<(Path, Change)> {
        let now = self.began.elapsed();
        let watch = self.watches.entry(path);
        let watch = watch.or_insert_with(|| Redirection::new(totals));
        Some((path, watch.observe(now, totals)?))
    }

    fn log(&self, path: Path, change: Change) {
        match change {
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
        let sites = self.config.sites.iter();
        let sites = sites.filter(|(id, site)| match path {
            Path::Site(one, _) => *id == one,
            Path::Held(_) => site.is_deferred(),
        });
        let sites: Vec<_> = sites.map(|(_, site)| site).collect();
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
