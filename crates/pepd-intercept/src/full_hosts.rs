//! Leaving the new flows of hosts to the kernel that have as many as one may have.

use std::collections::BTreeSet;

use pep_core::hosts::Host;
use pepd_sys::leg::Family;

use super::{InterceptError, Interception, cannot, nft};

impl Interception {
    /// From now on the kernel forwards new flows of these hosts, and of no others; what is open already goes on.
    ///
    /// # Errors
    /// When nft cannot be run, or the table is gone: which hosts they are is as it was then.
    pub async fn set_hosts_at_cap(&mut self, hosts: BTreeSet<Host>) -> Result<(), InterceptError> {
        self.install_hosts_at_cap(&hosts).await?;
        self.hosts_at_cap = hosts;
        Ok(())
    }

    /// The table is as it was first installed.
    pub(super) async fn put_back_hosts_at_cap(&self) -> Result<(), InterceptError> {
        if self.hosts_at_cap.is_empty() {
            return Ok(());
        }
        self.install_hosts_at_cap(&self.hosts_at_cap).await
    }

    async fn install_hosts_at_cap(&self, hosts: &BTreeSet<Host>) -> Result<(), InterceptError> {
        let families = if self.ipv6 {
            &Family::ALL[..]
        } else {
            &Family::ALL[..1]
        };
        let transaction = nft::hosts_transaction(&self.table, families, hosts);
        let applied = self.nft.apply(&transaction).await;
        applied.map_err(cannot("say which hosts have as many flows as one may have"))
    }
}
