//! Putting back what others have removed: `nft flush ruleset` (which reloading nftables.service
//! begins with) takes our table, network managers delete policy rules that are not theirs, and
//! switching `lo` off deletes IPv6 routes.
//!
//! Without the table connections pass unaccelerated and nobody would know; without the way to
//! local delivery the kernel drops what the table redirects.

use std::fmt;

use super::{InterceptError, Interception, cannot, nft};
use crate::gate::Gate;

/// What is not there any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing {
    /// Policy rules, or routes in our tables.
    routing: bool,
    /// The nft table.
    table: bool,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.routing, self.table) {
            (true, true) => "pepd's policy rules or routes and its nft table",
            (true, false) => "pepd's policy rules or routes",
            (false, _) => "pepd's nft table",
        })
    }
}

impl Interception {
    /// What somebody has removed since it was installed, if anything. Cheap enough for every
    /// second.
    ///
    /// # Errors
    /// When the kernel cannot be asked: descriptors are short.
    pub async fn missing(&self) -> Result<Option<Missing>, InterceptError> {
        let missing = Missing {
            routing: !self
                .routing
                .is_in_place(&self.netlink, &self.tun_indices)
                .await?,
            table: !nft::table_exists(&self.table).map_err(InterceptError::Ask)?,
        };
        Ok((missing.routing || missing.table).then_some(missing))
    }

    /// Puts it back, with the gate as it should be.
    ///
    /// # Errors
    /// When that does not work. What the table redirects would be lost where local delivery is not
    /// to be had: the table is removed then, and connections pass.
    pub async fn put_back(&self, missing: Missing, gate: Gate) -> Result<(), InterceptError> {
        if missing.routing {
            self.put_back_routing().await?;
        }
        if missing.table {
            let installed = self.nft.apply(&self.transaction).await;
            installed.map_err(cannot("install the nft table"))?;
            self.set_gate(gate).await?;
            self.put_back_bypassed().await?;
            self.put_back_hosts_at_cap().await?;
        }
        Ok(())
    }

    async fn put_back_routing(&self) -> Result<(), InterceptError> {
        let Err(err) = self.routing.install(&self.netlink, &self.tun_indices).await else {
            return Ok(());
        };
        if !self.routing.delivers(&self.netlink).await? {
            let removed = self.nft.apply(&nft::remove_transaction(&self.table)).await;
            removed.map_err(cannot("remove the nft table"))?;
        }
        Err(err.into())
    }
}
