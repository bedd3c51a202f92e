//! Leaving the flows, or the packets, of a site to the kernel for a while: its peer is gone, the link is away, or it is switched off.
//! And those to where no route leads, but while the link is down.

use std::collections::{BTreeMap, BTreeSet};

use pep_core::{config::Config, site::SiteId};

use super::{
    InterceptError, Interception, cannot, nft,
    rules::{self, Chain, NO_ROUTE, NoRoute, Ruleset},
};

/// Flows that are left to the kernel now.
#[derive(Debug, Clone, Default)]
pub struct LeftAlone {
    /// All new flows, and all packets, of these sites.
    pub sites: BTreeSet<SiteId>,
    /// Not even flows to where no route leads: that may be as the link is down.
    pub is_link_down: bool,
    /// Flows of IPv6 that would be answered at once, too: no server answers over it.
    pub is_v6_silent: bool,
}

/// The chains of sites, and which of them are not as they were installed.
#[derive(Debug, Default)]
pub(super) struct Bypass {
    installed: BTreeMap<SiteId, Chain>,
    bypassed: BTreeSet<SiteId>,
    /// True where there is the chain that asks for a route, and what it is for now.
    asks_for_route: bool,
    no_route: NoRoute,
}

impl Bypass {
    pub(super) fn new(config: &Config, ruleset: &Ruleset) -> Self {
        let chain = |id: SiteId| {
            let name = rules::own_chain(config, id)?;
            let chain = ruleset.chains.iter().find(|chain| chain.name == name)?;
            Some((id, chain.clone()))
        };
        let sites = config.sites.iter();
        Self {
            installed: sites.filter_map(|(id, _)| chain(id)).collect(),
            asks_for_route: ruleset.chains.iter().any(|chain| chain.name == NO_ROUTE),
            ..Self::default()
        }
    }
}

impl Interception {
    /// From now on the kernel forwards what `left` says, and nothing else; flows that are open go on.
    ///
    /// # Errors
    /// When nft cannot be run, or the table is gone. Chains that were not changed are the next time.
    pub async fn set_bypassed(&mut self, left: LeftAlone) -> Result<(), InterceptError> {
        let LeftAlone {
            sites,
            is_link_down,
            is_v6_silent,
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
        Ok(())
    }

    /// The table is as it was first installed.
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
        let (mask, rules) = (self.marks.mask(), rules::no_route(now));
        let transaction = nft::chain_transaction(&self.table, mask, NO_ROUTE, &rules);
        let applied = self.nft.apply(&transaction).await;
        applied.map_err(cannot(
            "hold flows to where no route leads, or let them pass again",
        ))
    }

    async fn set_site(&self, site: SiteId, is_bypassed: bool) -> Result<(), InterceptError> {
        let Some(chain) = self.bypass.installed.get(&site) else {
            return Ok(());
        };
        let left = rules::left_alone(&chain.name).filter(|_| is_bypassed);
        let rules = left.as_ref().unwrap_or(&chain.rules);
        let mask = self.marks.mask();
        let transaction = nft::chain_transaction(&self.table, mask, &chain.name, rules);
        let applied = self.nft.apply(&transaction).await;
        applied.map_err(cannot(
            "leave the flows of a site to the kernel, or take them again",
        ))
    }
}
