//! Route look-ups and TUN set-up over rtnetlink.

use std::{
    collections::{BTreeSet, HashSet},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use futures_util::TryStreamExt as _;
use netlink_packet_route::{
    address::{AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope},
    link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage},
    route::{RouteAttribute, RouteMessage},
};
use pepd_sys::leg::Family;
use rtnetlink::{Error, Handle, LinkUnspec, RouteMessageBuilder};
use tokio::task::JoinHandle;

use super::{hop::Hop, rules::DUMMY_ADDRESS};

/// A host of a LAN interface, as source of a route look-up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LanHost {
    /// The interface.
    pub interface: String,
    /// The interface's index.
    pub index: u32,
    /// An address that a host may have there; no such host needs to exist.
    pub address: IpAddr,
}

impl LanHost {
    /// Returns the family of the address.
    pub fn family(&self) -> Family {
        match self.address {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        }
    }
}

/// Packets that a TUN for held SYNs queues until pepd reads them: 100 ms of a flood of 40,000 SYNs
/// a second.
pub(super) const HELD_QUEUE: u32 = 4096;

/// Packets that a TUN of packets queues until pepd reads them: 12 ms of a Gbit/s. Packets that wait
/// for the link wait in pepd.
pub(super) const PACKET_QUEUE: u32 = 1024;

/// Failure to set a rule, a route or an interface.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct RouteError {
    pub(super) what: String,
    #[source]
    pub(super) err: io::Error,
}

impl RouteError {
    pub(super) fn new(what: impl Into<String>, err: Error) -> Self {
        let err = match err {
            Error::NetlinkError(message) => message.to_io(),
            other => io::Error::other(other.to_string()),
        };
        Self {
            what: what.into(),
            err,
        }
    }
}

/// An rtnetlink connection to the kernel.
#[derive(Debug)]
pub struct Netlink {
    pub(super) handle: Handle,
    connection: JoinHandle<()>,
}

impl Drop for Netlink {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Netlink {
    /// Connects. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When no socket can be opened.
    pub fn connect() -> Result<Self, RouteError> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(|err| RouteError {
            what: "cannot open a netlink socket".to_owned(),
            err,
        })?;
        let connection = tokio::spawn(connection);
        Ok(Self { handle, connection })
    }

    /// Sets a TUN up with a queue of this many packets, without multicast: it has no groups to join
    /// and no routers to find. Returns its interface index.
    ///
    /// # Errors
    /// When the interface does not exist or cannot be changed.
    pub async fn set_up(&self, name: &str, queue: u32) -> Result<u32, RouteError> {
        let what = || format!("cannot set up interface {name}");
        let index = self.index(name).await?;
        let mut address = self.handle.address().add(index, DUMMY_ADDRESS.into(), 32);
        address = address.replace();
        address.message_mut().header.scope = AddressScope::Host;
        let added = address.execute().await;
        added.map_err(|err| RouteError::new(what(), err))?;
        let message = LinkUnspec::new_with_index(index)
            .multicast(false)
            .txqueuelen(queue)
            .up()
            .build();
        let set = self.handle.link().set(message).execute().await;
        set.map_err(|err| RouteError::new(what(), err))?;
        Ok(index)
    }

    /// Sets the MTU of an interface: for a TUN 68 to 65,535, and 1280 or more where IPv6 has to
    /// stay enabled.
    ///
    /// # Errors
    /// When the interface does not exist, or does not accept this MTU.
    pub async fn set_mtu(&self, interface: u32, bytes: u32) -> Result<(), RouteError> {
        let message = LinkUnspec::new_with_index(interface).mtu(bytes).build();
        let set = self.handle.link().set(message).execute().await;
        let what = || format!("cannot set the MTU of interface {interface} to {bytes}");
        set.map_err(|err| RouteError::new(what(), err))
    }

    /// Returns the route of a packet of this machine with this mark; `None` when none exists.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub async fn look_up(
        &self,
        destination: IpAddr,
        mark: u32,
    ) -> Result<Option<RouteMessage>, RouteError> {
        let query = match destination {
            IpAddr::V4(address) => RouteMessageBuilder::<Ipv4Addr>::new()
                .destination_prefix(address, 32)
                .mark(mark)
                .build(),
            IpAddr::V6(address) => RouteMessageBuilder::<Ipv6Addr>::new()
                .destination_prefix(address, 128)
                .mark(mark)
                .build(),
        };
        self.route(query).await
    }

    /// Returns the route of a packet with this mark from a host; `None` when none exists, or when
    /// the kernel rejects the source address as spoofed.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub(crate) async fn look_up_from(
        &self,
        destination: IpAddr,
        mark: u32,
        host: &LanHost,
    ) -> Result<Option<RouteMessage>, RouteError> {
        let query = match (destination, host.address) {
            (IpAddr::V4(address), IpAddr::V4(source)) => RouteMessageBuilder::<Ipv4Addr>::new()
                .destination_prefix(address, 32)
                .source_prefix(source, 32)
                .input_interface(host.index)
                .mark(mark)
                .build(),
            (IpAddr::V6(address), IpAddr::V6(source)) => RouteMessageBuilder::<Ipv6Addr>::new()
                .destination_prefix(address, 128)
                .source_prefix(source, 128)
                .input_interface(host.index)
                .mark(mark)
                .build(),
            _ => return Ok(None),
        };
        self.route(query).await
    }

    /// Returns the neighbours that the kernel looks for, or has not found.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub(super) async fn unresolved(&self) -> Result<HashSet<Hop>, RouteError> {
        let mut neighbours = self.handle.neighbours().get().execute();
        let mut unresolved = HashSet::new();
        let error = |err| RouteError::new("cannot list neighbours", err);
        while let Some(neighbour) = neighbours.try_next().await.map_err(error)? {
            unresolved.extend(Hop::unresolved(&neighbour));
        }
        Ok(unresolved)
    }

    async fn route(&self, query: RouteMessage) -> Result<Option<RouteMessage>, RouteError> {
        let mut routes = self.handle.route().get(query).execute();
        match routes.try_next().await {
            Ok(route) => Ok(route),
            Err(Error::NetlinkError(_)) => Ok(None),
            Err(err) => Err(RouteError::new("cannot look a route up", err)),
        }
    }

    /// Returns all interfaces.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub async fn links(&self) -> Result<Vec<LinkMessage>, RouteError> {
        let links = self.handle.link().get().execute().try_collect().await;
        links.map_err(|err| RouteError::new("cannot list interfaces", err))
    }

    /// Returns the addresses that the operator has assigned to this machine: with unlimited
    /// lifetime, and not learnt from a router or a DHCP server.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub(crate) async fn permanent_addresses(&self) -> Result<BTreeSet<IpAddr>, RouteError> {
        let all = self.handle.address().get().execute();
        let all: Vec<AddressMessage> = all
            .try_collect()
            .await
            .map_err(|err| RouteError::new("cannot list addresses", err))?;
        let permanent = all.into_iter().filter(|address| {
            let header = address.header.flags;
            header.contains(AddressHeaderFlags::Permanent)
        });
        let own = permanent.filter_map(|address| {
            let of = |attribute: &AddressAttribute| match attribute {
                AddressAttribute::Local(own) => Some((0, *own)),
                AddressAttribute::Address(own) => Some((1, *own)),
                _ => None,
            };
            // On a point-to-point link, the second address is the peer's.
            Some(address.attributes.iter().filter_map(of).min()?.1)
        });
        Ok(own.collect())
    }

    /// Returns true if an interface is a bridge; false if it does not exist.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub async fn is_bridge(&self, name: &str) -> Result<bool, RouteError> {
        let links = self.handle.link().get().match_name(name.to_owned());
        match links.execute().try_next().await {
            Ok(link) => Ok(link.is_some_and(|link| is_bridge(&link))),
            Err(Error::NetlinkError(_)) => Ok(false),
            Err(err) => Err(RouteError::new("cannot look at an interface", err)),
        }
    }

    async fn index(&self, name: &str) -> Result<u32, RouteError> {
        let what = || format!("no interface {name}");
        let mut links = self
            .handle
            .link()
            .get()
            .match_name(name.to_owned())
            .execute();
        let link: Option<LinkMessage> = links
            .try_next()
            .await
            .map_err(|err| RouteError::new(what(), err))?;
        link.map(|link| link.header.index)
            .ok_or_else(|| RouteError {
                what: what(),
                err: io::ErrorKind::NotFound.into(),
            })
    }
}

/// Returns true if an interface is a bridge.
pub fn is_bridge(link: &LinkMessage) -> bool {
    let infos = link
        .attributes
        .iter()
        .filter_map(|attribute| match attribute {
            LinkAttribute::LinkInfo(infos) => Some(infos),
            _ => None,
        });
    let mut infos = infos.flatten();
    infos.any(|info| matches!(info, LinkInfo::Kind(InfoKind::Bridge)))
}

/// Returns the interface that a route leads to.
pub fn interface(route: &RouteMessage) -> Option<u32> {
    let attributes = route.attributes.iter();
    let mut interfaces = attributes.filter_map(|attribute| match attribute {
        RouteAttribute::Oif(interface) => Some(*interface),
        _ => None,
    });
    interfaces.next()
}
