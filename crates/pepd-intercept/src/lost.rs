//! Bypass or block of new flows while redirected SYNs do not arrive (`on_interception_loss`).

use std::collections::{BTreeMap, BTreeSet};

use pep_core::{config::Config, site::SiteId};

use super::{
    InterceptError, Interception, cannot, nft,
    rules::{self, Family},
};

/// Families whose redirected SYNs do not arrive, by site. Sites without loss are absent.
pub type Lost = BTreeMap<SiteId, BTreeSet<Family>>;

impl Interception {
    /// Returns the table's counters of packets, by name.
    ///
    /// # Errors
    /// When no descriptors are left, or the table is missing.
    pub fn counters(&self) -> Result<BTreeMap<String, u64>, InterceptError> {
        nft::counters(&self.table).map_err(InterceptError::Ask)
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
        let transaction: String = changed.map(of_site).collect();
        self.apply_lost(&transaction).await?;
        self.lost_again = lost.keys().copied().map(of_site).collect();
        self.lost = lost;
        Ok(())
    }

    /// Restores this part of a table that has been reinstalled.
    pub(super) async fn put_back_lost(&self) -> Result<(), InterceptError> {
        self.apply_lost(&self.lost_again).await
    }

    fn lost_of_site(
        &self,
        config: &Config,
        site: SiteId,
        families: Option<&BTreeSet<Family>>,
    ) -> String {
        let instead = config.sites[site].on_interception_loss;
        let rules = rules::lost(families.into_iter().flatten(), instead, &self.forgotten);
        let (mask, chain) = (self.marks.mask(), rules::lost_chain(site));
        nft::chain_transaction(&self.table, mask, &chain, &rules)
    }

    async fn apply_lost(&self, transaction: &str) -> Result<(), InterceptError> {
        if transaction.is_empty() {
            return Ok(());
        }
        let applied = self.nft.apply(transaction).await;
        applied.map_err(cannot("switch the redirection of a site's flows off or on"))
    }
}
