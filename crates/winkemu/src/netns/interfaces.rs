//! Interfaces, addresses, routes and kernel settings of a namespace.

use std::{
    future::Future,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::AsRawFd as _,
    path::PathBuf,
    time::Duration,
};

use futures_util::TryStreamExt as _;
use ipnet::IpNet;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteMetric, RouteType,
};
use netlink_packet_route::{
    address::{AddressAttribute, AddressFlags, AddressHeaderFlags},
    link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkMessage, State},
};
use nix::net::if_::if_nametoindex;
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec, RouteMessageBuilder, new_connection};

use super::{Netns, NetnsError, sys};

/// Linux limit: 15 bytes and a terminating zero (IFNAMSIZ).
const INTERFACE_NAME_MAX: usize = 15;

impl Netns {
    /// Creates a veth pair, one end in this namespace and one in `peer`, both still down.
    ///
    /// # Errors
    /// [`NetnsError::Netlink`]: a name is taken, empty or longer than 15 bytes.
    pub fn add_veth(&self, name: &str, peer: &Self, peer_name: &str) -> Result<(), NetnsError> {
        let what = format!("create the veth pair {name} - {peer_name}");
        check_interface_name(name)
            .and_then(|()| check_interface_name(peer_name))
            .map_err(|err| NetnsError::netlink(&what, err))?;
        let message = veth_message(name, peer, peer_name);
        self.netlink(what, |handle| async move {
            handle.link().add(message).execute().await
        })
    }

    /// Sets an interface up.
    ///
    /// # Errors
    /// [`NetnsError::Netlink`]: no such interface.
    pub fn set_up(&self, interface: &str) -> Result<(), NetnsError> {
        self.set_link(interface, "set up", LinkMessageBuilder::up)
    }

    /// Waits until an interface that is up can carry packets and answers for its IPv6 addresses.
    ///
    /// The kernel notices some carriers only once a second, and joins the multicast groups of
    /// addresses in the background. Until then, neighbour solicitations get no answer, and
    /// neighbours retry once a second. Newer kernels check the carrier when asked about the
    /// interface.
    ///
    /// # Errors
    /// [`NetnsError::Netlink`]: no such interface, or it is not ready in time.
    pub fn wait_ready(&self, interface: &str, timeout: Duration) -> Result<(), NetnsError> {
        let wanted = self.solicited_nodes(interface)?;
        let name = interface.to_owned();
        self.netlink(
            format!("wait until {interface} is ready"),
            move |handle| async move {
                let deadline = tokio::time::Instant::now() + timeout;
                while !is_ready(&handle, &name, &wanted).await? {
                    if tokio::time::Instant::now() > deadline {
                        let text = format!("not ready after {timeout:?}");
                        return Err(rtnetlink::Error::NamespaceError(text));
                    }
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                Ok(())
            },
        )
    }

    /// Solicited-node multicast groups of the interface's IPv6 addresses (RFC 4291, section 2.7.1),
    /// as `/proc/net/igmp6` writes them; empty for interfaces without neighbour discovery.
    fn solicited_nodes(&self, interface: &str) -> Result<Vec<String>, NetnsError> {
        let addresses = self.addresses(interface)?;
        let group = |address: &IpNet| match address.addr() {
            IpAddr::V6(address) => {
                let low = address.to_bits() & 0xff_ffff;
                Some(format!(
                    "{:032x}",
                    (0xff02_u128 << 112) | (0x1_ff00_0000 | low)
                ))
            }
            IpAddr::V4(_) => None,
        };
        Ok(addresses.iter().filter_map(group).collect())
    }

    /// Sets an interface down.
    ///
    /// # Errors
    /// [`NetnsError::Netlink`]: no such interface.
    pub fn set_down(&self, interface: &str) -> Result<(), NetnsError> {
        self.set_link(interface, "set down", LinkMessageBuilder::down)
    }

    /// Sets the MTU of an interface, in bytes.
    ///
    /// # Errors
    /// [`NetnsError::Netlink`]: no such interface, or the value is out of range.
    pub fn set_mtu(&self, interface: &str, mtu: u32) -> Result<(), NetnsError> {
        self.set_link(interface, "set the MTU of", |link| link.mtu(mtu))
    }

    /// Sets the transmit queue length of an interface, in packets.
    ///
    /// # Errors
    /// [`NetnsError::Netlink`]: no such interface.
    pub fn set_transmit_queue(&self, interface: &str, packets: u32) -> Result<(), NetnsError> {
        self.set_link(interface, "set the transmit queue of", |link| {
            link.append_extra_attribute(LinkAttribute::TxQueueLen(packets))
        })
    }

    /// Adds an address to an interface. IPv6 addresses are usable at once (no duplicate address
    /// detection).
    ///
    /// # Errors
    /// [`NetnsError::Netlink`]: no such interface, or it has the address already.
    pub fn add_address(&self, interface: &str, address: IpNet) -> Result<(), NetnsError> {
        let what = format!("add {address} to {interface}");
        let name = interface.to_owned();
        self.netlink(what, move |handle| async move {
            let index = index_of(&name)?;
            let mut add = handle
                .address()
                .add(index, address.addr(), address.prefix_len());
            let message = add.message_mut();
            message.header.flags = AddressHeaderFlags::Nodad;
            message
                .attributes
                .push(AddressAttribute::Flags(AddressFlags::Nodad));
            add.execute().await
        })
    }

    /// Adds a route through a gateway, or on an interface without one; `0.0.0.0/0` or `::/0` is the
    /// default route.
    ///
    /// # Errors
    /// [`NetnsError::Netlink`]: the gateway is not a neighbour, or the route exists.
    pub fn add_route(
        &self,
        destination: IpNet,
        gateway: Option<IpAddr>,
        interface: Option<&str>,
    ) -> Result<(), NetnsError> {
        let by = gateway.map_or(String::new(), |gateway| format!(" via {gateway}"));
        let on = interface.map_or(String::new(), |interface| format!(" dev {interface}"));
        let interface = interface.map(str::to_owned);
        self.netlink(
            format!("add the route {destination}{by}{on}"),
            move |handle| async move {
                let index = interface.as_deref().map(index_of).transpose()?;
                let message = route_message(destination, gateway, index);
                handle.route().add(message).execute().await
            },
        )
    }

    /// Sets the congestion control of all connections over the existing routes.
    ///
    /// The setting is a property of routes (`congctl` of `ip route`). It also works for congestion
    /// controls that `net.ipv4.tcp_congestion_control` refuses outside the first namespace. It
    /// overrides the choice of a program made before it connects.
    ///
    /// # Errors
    /// [`NetnsError::Netlink`]: the kernel has no congestion control of that name.
    pub fn set_route_congestion(&self, name: &str) -> Result<(), NetnsError> {
        let what = format!("use the congestion control `{name}` on routes");
        let name = name.to_owned();
        self.netlink(what, move |handle| async move {
            for dump in [
                RouteMessageBuilder::<Ipv4Addr>::new().build(),
                RouteMessageBuilder::<Ipv6Addr>::new().build(),
            ] {
                let routes: Vec<_> = handle.route().get(dump).execute().try_collect().await?;
                for route in routes
                    .into_iter()
                    .filter_map(|route| with_congestion(route, &name))
                {
                    handle.route().add(route).replace().execute().await?;
                }
            }
            Ok(())
        })
    }

    /// Removes an interface and, for a veth pair, its peer.
    ///
    /// # Errors
    /// [`NetnsError::Netlink`]: no such interface.
    pub fn remove_interface(&self, interface: &str) -> Result<(), NetnsError> {
        let name = interface.to_owned();
        self.netlink(format!("remove {interface}"), move |handle| async move {
            handle.link().del(index_of(&name)?).execute().await
        })
    }

    /// Names of all interfaces in the namespace.
    ///
    /// # Errors
    /// [`NetnsError::Netlink`]: the kernel does not list them.
    pub fn interfaces(&self) -> Result<Vec<String>, NetnsError> {
        let list = || {
            let interfaces = nix::net::if_::if_nameindex()?;
            let name = |entry: &nix::net::if_::Interface| entry.name().to_string_lossy().into();
            Ok(interfaces.iter().map(name).collect())
        };
        let names = self.enter(list)?;
        names.map_err(|err: nix::errno::Errno| NetnsError::netlink("list interfaces", err))
    }

    /// Enables or disables the segmentation offloads (TSO, GSO, GRO) of an interface.
    ///
    /// Without offloads, packets cross it one MTU at a time, as on a wire.
    ///
    /// # Errors
    /// [`NetnsError::Netlink`]: no such interface, or it refuses.
    pub fn set_offloads(&self, interface: &str, on: bool) -> Result<(), NetnsError> {
        self.enter(|| sys::set_offloads(interface, on))?
            .map_err(|err| NetnsError::netlink(format!("set offloads of {interface}"), err))
    }

    /// Sets a kernel setting of this namespace, such as `net.ipv4.ip_forward`.
    ///
    /// # Errors
    /// [`NetnsError::Sysctl`]: the kernel lacks the setting, refuses the value, or does not keep
    /// the setting per namespace.
    pub fn set_sysctl(&self, key: &str, value: &str) -> Result<(), NetnsError> {
        let path = sysctl_path(key);
        let written = self.enter(|| std::fs::write(path, value))?;
        written.map_err(|source| NetnsError::Sysctl {
            key: key.to_owned(),
            value: value.to_owned(),
            source,
        })
    }

    /// Reads a kernel setting of this namespace, without the final newline.
    ///
    /// # Errors
    /// [`NetnsError::ReadSysctl`]: the kernel lacks the setting.
    pub fn sysctl(&self, key: &str) -> Result<String, NetnsError> {
        let path = sysctl_path(key);
        let value = self.enter(|| std::fs::read_to_string(path))?;
        let value = value.map_err(|source| NetnsError::ReadSysctl {
            key: key.to_owned(),
            source,
        });
        Ok(value?.trim_end().to_owned())
    }

    fn set_link(
        &self,
        interface: &str,
        verb: &str,
        change: impl FnOnce(LinkMessageBuilder<LinkUnspec>) -> LinkMessageBuilder<LinkUnspec> + Send,
    ) -> Result<(), NetnsError> {
        let name = interface.to_owned();
        self.netlink(format!("{verb} {interface}"), |handle| async move {
            let message = change(LinkUnspec::new_with_index(index_of(&name)?)).build();
            handle.link().set(message).execute().await
        })
    }

    /// Runs requests over a netlink socket of this namespace.
    ///
    /// # Errors
    /// Failure to enter the namespace, or a request that fails, with `what` as its description.
    pub fn netlink<T, F>(
        &self,
        what: String,
        request: impl FnOnce(Handle) -> F + Send,
    ) -> Result<T, NetnsError>
    where
        T: Send,
        F: Future<Output = Result<T, rtnetlink::Error>>,
    {
        let outcome = self.enter(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(async {
                let (connection, handle, _) = new_connection()?;
                tokio::spawn(connection);
                request(handle).await.map_err(into_io_error)
            })
        })?;
        outcome.map_err(|err: io::Error| NetnsError::netlink(what, err))
    }

    /// Addresses of an interface.
    ///
    /// # Errors
    /// [`NetnsError::Netlink`]: no such interface.
    pub fn addresses(&self, interface: &str) -> Result<Vec<IpNet>, NetnsError> {
        let name = interface.to_owned();
        self.netlink(
            format!("list addresses of {interface}"),
            move |handle| async move {
                let request = handle
                    .address()
                    .get()
                    .set_link_index_filter(index_of(&name)?);
                let messages: Vec<_> = request.execute().try_collect().await?;
                Ok(messages
                    .iter()
                    .flat_map(|message| {
                        let length = message.header.prefix_len;
                        message
                            .attributes
                            .iter()
                            .filter_map(move |attribute| match attribute {
                                AddressAttribute::Address(address) => {
                                    IpNet::new(*address, length).ok()
                                }
                                _ => None,
                            })
                    })
                    .collect())
            },
        )
    }
}

/// Reports whether this thread's namespace has joined all these groups on the interface.
fn has_joined(interface: &str, groups: &[String]) -> bool {
    let joined = std::fs::read_to_string("/proc/thread-self/net/igmp6").unwrap_or_default();
    let joined: Vec<Vec<_>> = joined
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let is_in = |group: &String| {
        joined
            .iter()
            .any(|fields| fields.get(1..3) == Some(&[interface, group.as_str()]))
    };
    groups.iter().all(is_in)
}

/// Reports whether the interface has its carrier and, with neighbour discovery, its groups.
async fn is_ready(
    handle: &Handle,
    interface: &str,
    groups: &[String],
) -> Result<bool, rtnetlink::Error> {
    let links = handle
        .link()
        .get()
        .match_index(index_of(interface)?)
        .execute();
    let links: Vec<_> = links.try_collect().await?;
    let mut attributes = links.iter().flat_map(|link| &link.attributes);
    let operational = attributes.any(|attribute| {
        // A TUN device reports an unknown state, and works.
        matches!(
            attribute,
            LinkAttribute::OperState(State::Up | State::Unknown)
        )
    });
    let asks = |link: &LinkMessage| !link.header.flags.contains(LinkFlags::Noarp);
    Ok(operational && (!links.iter().any(asks) || has_joined(interface, groups)))
}

fn veth_message(name: &str, peer: &Netns, peer_name: &str) -> LinkMessage {
    let peer = LinkMessageBuilder::<LinkUnspec>::new()
        .name(peer_name)
        .setns_by_fd(peer.fd.as_raw_fd())
        .build();
    LinkMessageBuilder::<LinkUnspec>::new_with_info_kind(InfoKind::Veth)
        .name(name)
        .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
        .build()
}

fn route_message(
    destination: IpNet,
    gateway: Option<IpAddr>,
    interface: Option<u32>,
) -> RouteMessage {
    let route = RouteMessageBuilder::<IpAddr>::new()
        .destination_prefix(destination.addr(), destination.prefix_len())
        .expect("an IpNet's prefix length fits its family");
    let route = match gateway {
        Some(gateway) => route
            .gateway(gateway)
            .expect("a gateway of the same family"),
        None => route,
    };
    match interface {
        Some(index) => route.output_interface(index).build(),
        None => route.build(),
    }
}

/// Returns the route with a congestion control; `None` for routes that carry no connections.
fn with_congestion(mut route: RouteMessage, name: &str) -> Option<RouteMessage> {
    let unicast = route.header.kind == RouteType::Unicast;
    let main = route.header.table == RouteHeader::RT_TABLE_MAIN;
    let link_local = route.attributes.iter().any(|attribute| {
        let RouteAttribute::Destination(RouteAddress::Inet6(address)) = attribute else {
            return false;
        };
        address.is_unicast_link_local()
    });
    if !unicast || !main || link_local {
        return None;
    }
    // The other attributes are the kernel's own observations.
    route.attributes.retain(|attribute| {
        use RouteAttribute::{Destination, Gateway, Oif, PrefSource, Priority};
        matches!(
            attribute,
            Destination(_) | Gateway(_) | Oif(_) | PrefSource(_) | Priority(_)
        )
    });
    let metric = RouteMetric::CcAlgo(name.to_owned());
    route.attributes.push(RouteAttribute::Metrics(vec![metric]));
    Some(route)
}

fn check_interface_name(name: &str) -> io::Result<()> {
    if name.is_empty() || name.len() > INTERFACE_NAME_MAX || name.contains(['/', ' ']) {
        return Err(io::Error::other(format!(
            "`{name}` is not an interface name of 1 to 15 bytes"
        )));
    }
    Ok(())
}

fn index_of(interface: &str) -> Result<u32, rtnetlink::Error> {
    if_nametoindex(interface)
        .map_err(|_| rtnetlink::Error::NamespaceError(format!("no interface {interface}")))
}

fn into_io_error(err: rtnetlink::Error) -> io::Error {
    match err {
        rtnetlink::Error::NetlinkError(message) => message.to_io(),
        rtnetlink::Error::NamespaceError(text) => io::Error::new(io::ErrorKind::NotFound, text),
        other => io::Error::other(other.to_string()),
    }
}

fn sysctl_path(key: &str) -> PathBuf {
    // Interface names may contain dots; those of the lab do not.
    PathBuf::from("/proc/sys").join(key.replace('.', "/"))
}
