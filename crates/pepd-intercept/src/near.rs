//! Networks that this machine is in, other than those by which it reaches peers and the world.
//!
//! Hosts of this side reach them without a tunnel, and the far end of one mostly knows no way back.
//! What other routes take goes into the tunnel: they may lead past it, in the clear, by another
//! uplink.

use std::{collections::BTreeSet, io, net::IpAddr};

use ipnet::IpNet;
use nix::{
    ifaddrs::getifaddrs,
    net::if_::{InterfaceFlags, if_indextoname},
};
use pep_core::config::Config;
use pepd_sys::leg::Family;

use super::{
    InterceptError, Interception, cannot,
    netlink::{Netlink, RouteError, interface},
    nft,
    route::{ip, nobody},
};

/// Networks as the table knows them, and what tells them from uplinks.
#[derive(Debug)]
pub(super) struct Near {
    link: Option<String>,
    /// Addresses that are reached by uplinks.
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
            far: endpoints.chain(Family::ALL.map(nobody)).collect(),
            networks: BTreeSet::new(),
        }
    }

    /// Interfaces that lead to peers and to the world.
    async fn uplinks(&self, netlink: &Netlink) -> Result<BTreeSet<String>, RouteError> {
        let mut uplinks: BTreeSet<_> = self.link.iter().cloned().collect();
        for &address in &self.far {
            let route = netlink.look_up(address, 0).await?;
            let index = route.as_ref().and_then(interface);
            let name = index.and_then(|index| if_indextoname(index).ok());
            uplinks.extend(name.and_then(|name| name.into_string().ok()));
        }
        Ok(uplinks)
    }
}

/// Networks of these addresses, of interfaces that are up, but for these.
fn networks(
    permanent: &BTreeSet<IpAddr>,
    uplinks: &BTreeSet<String>,
) -> io::Result<BTreeSet<IpNet>> {
    let networks = getifaddrs()?.filter_map(|address| {
        let is_up = address.flags.contains(InterfaceFlags::IFF_UP);
        let leads = is_up && !address.flags.contains(InterfaceFlags::IFF_LOOPBACK);
        if !leads || uplinks.contains(&address.interface_name) {
            return None;
        }
        let own = ip(address.address.as_ref()?)?;
        let mask = ip(address.netmask.as_ref()?)?;
        let net = IpNet::with_netmask(own, mask).ok()?.trunc();
        let is_of_many = net.prefix_len() < net.max_prefix_len() && net.prefix_len() > 0;
        let is_routed = !matches!(own, IpAddr::V6(own) if own.is_unicast_link_local());
        (is_of_many && is_routed && permanent.contains(&own)).then_some(net)
    });
    Ok(networks.collect())
}

impl Interception {
    /// Tells the table of networks that have come or gone since the last time.
    pub(super) async fn look_at_networks(&mut self) -> Result<(), InterceptError> {
        let Some(near) = &self.near else {
            return Ok(());
        };
        let uplinks = near.uplinks(&self.netlink).await?;
        // A stranger on another uplink could have this machine take an address of a network that
        // lies behind the tunnel.
        let permanent = self.netlink.permanent_addresses().await?;
        let networks = networks(&permanent, &uplinks).map_err(InterceptError::Ask)?;
        if networks != near.networks {
            self.set_networks(&networks).await?;
            let list: Vec<_> = networks.iter().map(ToString::to_string).collect();
            tracing::info!(networks = %list.join(", "), "hosts reach these networks past tunnels");
            self.near = self.near.take().map(|near| Near { networks, ..near });
        }
        Ok(())
    }

    /// The table is as it was first installed.
    pub(super) async fn put_back_networks(&self) -> Result<(), InterceptError> {
        match &self.near {
            Some(near) => self.set_networks(&near.networks).await,
            None => Ok(()),
        }
    }

    async fn set_networks(&self, networks: &BTreeSet<IpNet>) -> Result<(), InterceptError> {
        let families = self.routing.families();
        let transaction = nft::networks_transaction(&self.table, families, networks);
        let applied = self.nft.apply(&transaction).await;
        applied.map_err(cannot("say which networks this machine is in"))
    }
}
