//! Networks of this machine, except those of uplinks to peers and to the Internet.
//!
//! Hosts of this end reach them without a tunnel; the far end mostly has no return route.
//! Destinations of other routes go into the tunnel: those routes may lead past it, in clear text,
//! by another uplink.

use std::{collections::BTreeSet, io, net::IpAddr};

use ipnet::IpNet;
use nix::{ifaddrs::getifaddrs, net::if_::if_indextoname};
use pep_core::config::Config;
use pepd_sys::{leg::Family, places::unused_address};

use super::{
    InterceptError, Interception, cannot, hops,
    lan::network_of,
    netlink::{Netlink, interface},
};

/// Networks in the table, and the addresses that identify uplinks.
#[derive(Debug)]
pub(super) struct Near {
    link: Option<String>,
    /// Addresses that uplinks lead to.
    far: Vec<IpAddr>,
    networks: BTreeSet<IpNet>,
}

impl Near {
    pub(super) fn new(config: &Config) -> Self {
        let link = config.link.as_ref();
        let peers = config.peers.iter();
        let endpoints = peers.filter_map(|peer| Some(peer.endpoint.as_ref()?.address()?.ip()));
        Self {
            link: link.map(|link| link.interface.to_string()),
            far: endpoints.chain(Family::ALL.map(unused_address)).collect(),
            networks: BTreeSet::new(),
        }
    }

    /// Returns the interfaces that lead to peers and to the Internet.
    async fn uplinks(
        &self,
        netlink: &Netlink,
        hops: &mut hops::Cache,
    ) -> Result<BTreeSet<String>, InterceptError> {
        let mut uplinks: BTreeSet<_> = self.link.iter().cloned().collect();
        for &address in &self.far {
            let route = netlink.look_up(address, 0).await?;
            let index = route.as_ref().and_then(interface);
            let name = index.and_then(|index| if_indextoname(index).ok());
            uplinks.extend(name.and_then(|name| name.into_string().ok()));
        }
        // A look-up finds one of several next hops.
        for uplink in uplinks.clone() {
            uplinks.extend(hops.with(&uplink).map_err(InterceptError::Ask)?);
        }
        Ok(uplinks)
    }
}

/// Returns the networks of these addresses, of interfaces that are up, except for these interfaces.
fn networks(
    permanent: &BTreeSet<IpAddr>,
    uplinks: &BTreeSet<String>,
) -> io::Result<BTreeSet<IpNet>> {
    let networks =
        getifaddrs()?.filter_map(|address| match uplinks.contains(&address.interface_name) {
            true => None,
            false => network_of(&address, permanent),
        });
    Ok(networks.collect())
}

impl Interception {
    /// Updates the table with networks added or removed since the last call.
    pub(super) async fn look_at_networks(&mut self) -> Result<(), InterceptError> {
        let Some(near) = &self.near else {
            return Ok(());
        };
        let uplinks = near.uplinks(&self.netlink, &mut self.hops).await?;
        // An attacker on another uplink could assign this machine an address of a network behind
        // the tunnel.
        let permanent = self.netlink.permanent_addresses().await?;
        let networks = networks(&permanent, &uplinks).map_err(InterceptError::Ask)?;
        if networks != near.networks {
            self.set_networks(&networks).await?;
            let list: Vec<_> = networks.iter().map(ToString::to_string).collect();
            let list = match &list[..] {
                [] => "none".to_owned(),
                some => some.join(", "),
            };
            tracing::info!(networks = %list, "local networks changed: hosts reach them directly, not through a tunnel");
            self.near = self.near.take().map(|near| Near { networks, ..near });
        }
        Ok(())
    }

    /// Restores this part of a table that has been reinstalled.
    pub(super) async fn put_back_networks(&self) -> Result<(), InterceptError> {
        match &self.near {
            Some(near) => self.set_networks(&near.networks).await,
            None => Ok(()),
        }
    }

    async fn set_networks(&self, networks: &BTreeSet<IpNet>) -> Result<(), InterceptError> {
        let families = self.routing.families();
        let applied = self.filter.set_networks(families, networks).await;
        applied.map_err(cannot("update the networks of this machine"))
    }
}
