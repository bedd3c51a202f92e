//! Bypass of hosts that have reached `limits.flows_per_host`: the kernel forwards their new flows.

use std::collections::BTreeSet;

use pep_core::hosts::Host;
use pepd_sys::leg::Family;

use super::{InterceptError, Interception, cannot};

impl Interception {
    /// Forwards new flows of these hosts, and of no others, from now on. Open flows continue.
    ///
    /// # Errors
    /// When nft cannot be run, or the table is missing. The previous set of hosts then stays.
    pub async fn set_hosts_at_cap(&mut self, hosts: BTreeSet<Host>) -> Result<(), InterceptError> {
        self.install_hosts_at_cap(&hosts).await?;
        self.hosts_at_cap = hosts;
        Ok(())
    }

    /// Restores this part of a table that has been reinstalled.
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
        let applied = self.filter.set_hosts(families, hosts).await;
        applied.map_err(cannot("update the set of hosts at their flow limit"))
    }
}
