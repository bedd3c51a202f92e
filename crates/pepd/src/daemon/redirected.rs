//! Whether SYNs that pepd's rules redirect arrive, and what becomes of hosts' connections where
//! they do not: the dead man's switch.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use pep_core::{
    config::Config,
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

/// What is watched: the flows of one family of a site, or SYNs on their way into a TUN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Site(SiteId, Family),
    Held(Family),
}

/// The switch.
#[derive(Debug)]
pub(super) struct Redirected {
    config: Arc<Config>,
    watches: BTreeMap<What, Redirection>,
    undelivered: BTreeSet<Family>,
    began: Instant,
    /// The log has a line of connections that all pass.
    other_routes_logged: bool,
    /// The rules could not be changed at the last look.
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

    /// Tries again soon: something in the way was removed.
    pub(super) fn hurry(&mut self) {
        let now = self.began.elapsed();
        for watch in self.watches.values_mut() {
            watch.hurry(now);
        }
    }

    /// Families of which SYNs of sites that answer them at once cannot arrive, for a reason that is
    /// known: not even a try.
    pub(super) fn cannot_arrive(&mut self, families: BTreeSet<Family>) {
        self.undelivered = families;
    }

    /// Looks; to be called every second. Changes of the rules that fail are tried again at the next
    /// look. True where a loss has begun.
    pub(super) async fn check(
        &mut self,
        interception: &mut Interception,
        context: &FlowContext,
        sites: &[Arc<SiteRuntime>],
    ) -> bool {
        let counters = match interception.counters() {
            Ok(counters) => counters,
            Err(err) => {
                let error = &err as &dyn std::error::Error;
                tracing::debug!(error, "cannot see whether redirected SYNs arrive");
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
                "cannot change what becomes of connections, trying again"
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
        for (what, change) in changes {
            self.log(what, change);
        }
        losses > 0
    }

    /// Changes since the last look, as the counters of the rules and of listeners have them.
    fn changes(
        &mut self,
        counters: &BTreeMap<String, u64>,
        context: &FlowContext,
        sites: &[Arc<SiteRuntime>],
    ) -> Vec<(What, Change)> {
        let mut changes = Vec::new();
        let count = |counter: Counter| counters.get(counter.name().as_ref()).copied();
        for family in Family::ALL {
            let number = |counter| count(counter).unwrap_or(0);
            let foreign = number(Counter::OtherMarks(family));
            let aborted = number(Counter::Aborted(family)) + foreign;
            let handshakes = number(Counter::Handshakes(family));
            for site in sites {
                let what = What::Site(site.id, family);
                let Some(redirected) = count(Counter::Redirected(family, site.id)) else {
                    continue;
                };
                // The answer to a SYN is as good a sign as a flow: hosts may not go on.
                let accepted = site.site_counters.arrived(family) + handshakes;
                let totals = Totals {
                    redirected,
                    aborted,
                    accepted,
                };
                changes.extend(self.observe(what, totals));
            }
            if let (Some(held), Some(redirected)) = (&context.held, count(Counter::Held(family))) {
                let accepted = held.arrived(family);
                let totals = Totals {
                    redirected,
                    aborted: foreign,
                    accepted,
                };
                changes.extend(self.observe(What::Held(family), totals));
            }
        }
        changes
    }

    /// Tells what has become of losses when this process ends: the next one redirects all
    /// connections, and knows of no loss.
    pub(super) fn conclude(
        &mut self,
        interception: &Interception,
        context: &FlowContext,
        sites: &[Arc<SiteRuntime>],
    ) {
        // What cannot be counted any more is not told.
        let Ok(counters) = interception.counters() else {
            return;
        };
        let changes = self.changes(&counters, context, sites).into_iter();
        for (what, change) in changes.filter(|(_, change)| *change == Change::Works) {
            self.log(what, change);
        }
        let in_doubt = self.watches.iter();
        for (what, _) in in_doubt.filter(|(_, watch)| watch.is_in_doubt()) {
            let what = self.describe(*what);
            tracing::info!(
                "{what}: the next process redirects connections again, and logs an error where they do not arrive"
            );
        }
    }

    /// A link of which no connection crosses the stated interface is named wrongly, or lies below a
    /// VPN's.
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
            "all connections pass unaccelerated: their routes lead by other interfaces than {link} (`link.interface`); \
             name that of the routes, or have them carried: `link.other_routes = \"split\"`"
        );
    }

    fn observe(&mut self, what: What, totals: Totals) -> Option<(What, Change)> {
        let now = self.began.elapsed();
        let watch = self.watches.entry(what);
        let watch = watch.or_insert_with(|| Redirection::new(totals));
        Some((what, watch.observe(now, totals)?))
    }

    fn log(&self, what: What, change: Change) {
        match change {
            Change::Lost { syns, pause } => self.log_interception_loss(what, syns, pause),
            Change::Trial => {
                let what = self.describe(what);
                tracing::info!(
                    "{what}: connections are redirected again, to see whether they arrive"
                );
            }
            Change::Works => {
                let what = self.describe(what);
                tracing::info!("{what}: connections that are redirected arrive again");
            }
        }
    }

    fn log_interception_loss(&self, what: What, syns: u64, pause: Duration) {
        let (described, pause) = (self.describe(what), pause.as_secs());
        let fate = self.fate(what);
        tracing::error!(
            syns,
            "{described}: the machine drops what pepd redirects, {fate}; tried again in {pause} s; a firewall or policy \
             rule of another program: `pepd check` looks for it (`syns` counts repeats, too)"
        );
    }

    fn describe(&self, what: What) -> String {
        match what {
            What::Site(site, family) => format!("site {}, {family}", self.config.sites[site].name),
            What::Held(family) => format!("SYNs held for `syn = \"defer\"`, {family}"),
        }
    }

    fn fate(&self, what: What) -> &'static str {
        let sites = self.config.sites.iter();
        let sites = sites.filter(|(id, site)| match what {
            What::Site(one, _) => *id == one,
            What::Held(_) => site.is_deferred(),
        });
        let sites: Vec<_> = sites.map(|(_, site)| site).collect();
        let blocks = sites
            .iter()
            .all(|site| site.on_interception_loss == InterceptionLoss::Block);
        let is_tunnelled = sites.iter().any(|site| site.mode == Mode::Tunnel);
        match (blocks, is_tunnelled) {
            (true, _) => "new connections are blocked (`on_interception_loss`)",
            (false, true) => {
                "new connections pass UNPROTECTED, outside of the tunnel (`on_interception_loss`)"
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
        for (what, _) in self.watches.iter().filter(|(_, watch)| watch.is_lost()) {
            match *what {
                What::Site(site, family) => {
                    lost.entry(site).or_default().insert(family);
                }
                What::Held(family) => {
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
