//! Bypass or block of new flows while redirected SYNs do not arrive (`on_interception_loss`).

use std::collections::{BTreeMap, BTreeSet};

use pep_core::{config::Config, site::SiteId};

use super::{
    InterceptError, Interception, cannot,
    rules::{self, Family, Rule},
};

/// Families whose redirected SYNs do not arrive, by site. Sites without loss are absent.
pub type Lost = BTreeMap<SiteId, BTreeSet<Family>>;

impl Interception {
    /// Returns the rules' counters of packets, by name. Those of iptables are of its last listing.
    ///
    /// # Errors
    /// When no descriptors are left, or the table is missing.
    pub fn counters(&self) -> Result<BTreeMap<String, u64>, InterceptError> {
        self.filter.counters().map_err(InterceptError::Ask)
    }

    /// Returns true if [`counters`](Self::counters) are of this moment, once for each listing of
    /// iptables.
    pub fn has_new_counters(&self) -> bool {
        self.filter.take_fresh()
    }

    /// Stops the redirection of SYNs of these families of these sites, and resumes that of all
    /// others.
    ///
    /// # Errors
    /// When nft cannot be run, or the table is missing. The next call retries the rest.
    pub async fn set_lost(&mut self, config: &Config, lost: Lost) -> Result<(), InterceptError> {
        let sites: BTreeSet<SiteId> = lost.keys().chain(self.lost.keys()).copied().collect();
        let changed = sites
            .into_iter()
            .filter(|site| lost.get(site) != self.lost.get(site));
        let of_site = |site| self.lost_of_site(config, site, lost.get(&site));
        let chains: Vec<_> = changed.map(of_site).collect();
        self.set_lost_chains(&chains).await?;
        self.lost_again = lost.keys().copied().map(of_site).collect();
        self.lost = lost;
        Ok(())
    }

    /// Takes connections again that did not reach pepd: an obstacle was removed.
    ///
    /// # Errors
    /// When nft cannot be run, or the table is missing. They then pass for some minutes more.
    pub async fn forget_filtered(&self) -> Result<(), InterceptError> {
        let forgotten = self.filter.forget_filtered(&self.ruleset.filtered).await;
        forgotten.map_err(cannot("take connections again that did not reach pepd"))
    }

    /// Restores this part of a table that has been reinstalled.
    pub(super) async fn put_back_lost(&self) -> Result<(), InterceptError> {
        self.set_lost_chains(&self.lost_again).await
    }

    fn lost_of_site(
        &self,
        config: &Config,
        site: SiteId,
        families: Option<&BTreeSet<Family>>,
    ) -> (String, Vec<Rule>) {
        let instead = config.sites[site].on_interception_loss;
        let families = families.into_iter().flatten();
        let rules = rules::lost(families, instead);
        (rules::lost_chain(site), rules)
    }

    async fn set_lost_chains(&self, chains: &[(String, Vec<Rule>)]) -> Result<(), InterceptError> {
        let applied = self.filter.set_chains(chains).await;
        applied.map_err(cannot("switch the redirection of a site's flows off or on"))
    }
}
