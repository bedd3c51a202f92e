//! Temporary bypass of a site: the kernel forwards its flows or packets while its peer or the link
//! is down, or the site is switched off.
//!
//! Flows to destinations without a route are forwarded as well, unless the link is down.

use std::collections::{BTreeMap, BTreeSet};

use pep_core::{config::Config, site::SiteId};
use tracing::warn;

use super::{
    InterceptError, Interception, cannot,
    lost::Lost,
    rules::{self, Chain, NO_ROUTE, NoRoute, Ruleset},
};

/// Flows that the kernel forwards at present.
#[derive(Debug, Clone, Default)]
pub struct LeftAlone {
    /// All new flows, and all packets, of these sites.
    pub sites: BTreeSet<SiteId>,
    /// True while the link is down: flows to destinations without a route are kept too, since their
    /// routes may return with the link.
    pub is_link_down: bool,
    /// True while no server answers over IPv6: flows of IPv6 that pepd would answer at once are
    /// forwarded.
    pub is_v6_silent: bool,
    /// Families whose hosts the peer of a site does not reach: new flows to them are refused, so
    /// that hosts try another address.
    pub unreached: Lost,
}

/// Chains of sites, and those that differ from their installed state.
#[derive(Debug, Default)]
pub(super) struct Bypass {
    installed: BTreeMap<SiteId, Vec<Chain>>,
    bypassed: BTreeSet<SiteId>,
    /// Purpose of the chain that looks up a route; `None` where the table lacks the chain.
    asks_for_route: bool,
    no_route: NoRoute,
}

impl Bypass {
    pub(super) fn new(config: &Config, ruleset: &Ruleset) -> Self {
        let own = |id: SiteId| {
            let names = rules::own_chains(config, id);
            let chains = ruleset.chains.iter();
            let chains = chains.filter(|chain| names.contains(&chain.name));
            (id, chains.cloned().collect())
        };
        let sites = config.sites.iter();
        Self {
            installed: sites.map(|(id, _)| own(id)).collect(),
            asks_for_route: ruleset.chains.iter().any(|chain| chain.name == NO_ROUTE),
            ..Self::default()
        }
    }
}

impl Interception {
    /// Forwards the flows of `left`, and no others, from now on. Open flows continue.
    ///
    /// # Errors
    /// When nft cannot be run, or the table is missing. The next call retries the chains that were
    /// not changed.
    pub async fn set_bypassed(&mut self, left: LeftAlone) -> Result<(), InterceptError> {
        let LeftAlone {
            sites,
            is_link_down,
            is_v6_silent,
            unreached,
        } = left;
        let no_route = match (is_link_down, is_v6_silent) {
            (true, _) => NoRoute::LinkDown,
            (false, true) => NoRoute::SilentV6,
            (false, false) => NoRoute::Asked,
        };
        if no_route != self.bypass.no_route {
            self.set_no_route(no_route).await?;
            self.bypass.no_route = no_route;
        }
        if self.filter.is_manual() && sites.difference(&self.bypass.bypassed).next().is_some() {
            warn!(
                sites = sites.len(),
                "new connections of sites whose peer or link is down, or that are off, still reach pepd: it changes no rules \
                 (`intercept.rules`)"
            );
        }
        let changed = sites.symmetric_difference(&self.bypass.bypassed);
        for site in changed.copied().collect::<Vec<_>>() {
            let is_bypassed = sites.contains(&site);
            self.set_site(site, is_bypassed).await?;
            if is_bypassed {
                self.bypass.bypassed.insert(site);
            } else {
                self.bypass.bypassed.remove(&site);
            }
        }
        if self.refuses(&unreached) {
            return Ok(());
        }
        self.set_unreached(unreached).await
    }

    /// Restores this part of a table that has been reinstalled.
    pub(super) async fn put_back_bypassed(&self) -> Result<(), InterceptError> {
        for site in &self.bypass.bypassed {
            self.set_site(*site, true).await?;
        }
        match self.bypass.no_route {
            NoRoute::Asked => Ok(()),
            other => self.set_no_route(other).await,
        }
    }

    async fn set_no_route(&self, now: NoRoute) -> Result<(), InterceptError> {
        if !self.bypass.asks_for_route {
            return Ok(());
        }
        let rules = rules::no_route(now);
        let applied = self.filter.set_chain(NO_ROUTE, &rules).await;
        applied.map_err(cannot(
            "switch the bypass of flows without a route on or off",
        ))
    }

    async fn set_site(&self, site: SiteId, is_bypassed: bool) -> Result<(), InterceptError> {
        for chain in self.bypass.installed.get(&site).into_iter().flatten() {
            let left = rules::left_alone(&chain.name).filter(|_| is_bypassed);
            let rules = left.as_ref().unwrap_or(&chain.rules);
            let applied = self.filter.set_chain(&chain.name, rules).await;
            applied.map_err(cannot("switch the bypass of a site on or off"))?;
        }
        Ok(())
    }
}
