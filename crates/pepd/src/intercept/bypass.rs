//! Leaving the flows of a site to the kernel for a while: its peer is gone, the link is away, or it is switched off.

use std::collections::{BTreeMap, BTreeSet};

use pep_core::{config::Config, site::SiteId};

use super::{
    InterceptError, Interception, cannot, nft,
    rules::{self, Rule, Ruleset},
};

/// The chains of sites, and which of them are not as they were installed.
#[derive(Debug, Default)]
pub(super) struct Bypass {
    installed: BTreeMap<SiteId, Vec<Rule>>,
    bypassed: BTreeSet<SiteId>,
}

impl Bypass {
    pub(super) fn new(config: &Config, ruleset: &Ruleset) -> Self {
        let chain = |id: SiteId| {
            let name = rules::site_chain(id);
            let chain = ruleset.chains.iter().find(|chain| chain.name == name)?;
            Some((id, chain.rules.clone()))
        };
        let sites = config.sites.iter();
        Self {
            installed: sites.filter_map(|(id, _)| chain(id)).collect(),
            bypassed: BTreeSet::new(),
        }
    }
}

impl Interception {
    /// From now on the kernel forwards new flows of these sites, and of no others; what is open already goes on.
    ///
    /// # Errors
    /// When nft cannot be run, or the table is gone. Chains that were not changed are the next time.
    pub async fn set_bypassed(&mut self, sites: BTreeSet<SiteId>) -> Result<(), InterceptError> {
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
        Ok(())
    }

    async fn set_site(&self, site: SiteId, is_bypassed: bool) -> Result<(), InterceptError> {
        let Some(installed) = self.bypass.installed.get(&site) else {
            return Ok(());
        };
        let bypassed = rules::bypassed();
        let rules = if is_bypassed { &bypassed } else { installed };
        let name = rules::site_chain(site);
        let transaction = nft::chain_transaction(&self.table, self.marks.mask(), &name, rules);
        let applied = self.nft.apply(&transaction).await;
        applied.map_err(cannot(
            "leave the flows of a site to the kernel, or take them again",
        ))
    }
}
