//! Location of addresses: on this machine, in a network of it, or behind a router.
//!
//! The kernel's routes decide at each question, so that every change counts at once.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsRawFd as _, OwnedFd},
};

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::{
    AddressFamily as Family, RouteNetlinkMessage,
    route::{RouteAddress, RouteAttribute, RouteMessage, RouteType},
};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket,
};
use pep_core::reach::{Extent, Place, is_private};

use crate::family::Family as LegFamily;

/// Routing protocol that marks pepd's rules and routes (`ip rule`: `proto 80`).
pub const ROUTE_PROTOCOL: u8 = 80;

/// Bytes of each part of a list of routes: as many as the kernel fills at once.
const DUMP_BYTES: usize = 32 << 10;

/// Longer than the description of any single route.
const ANSWER_BYTES_MAX: usize = 4096;

/// Questions about addresses, as this machine routes packets with one mark to them.
#[derive(Debug)]
pub struct Places {
    socket: OwnedFd,
    mark: u32,
}

impl Places {
    /// Opens a netlink socket in the current network namespace. Routing may depend on the mark.
    ///
    /// # Errors
    /// When descriptors or memory are short.
    pub fn open(mark: u32) -> io::Result<Self> {
        let socket = netlink()?;
        Ok(Self { socket, mark })
    }

    /// Returns the place of an address; [`Place::Unknown`] if the kernel does not answer. Rules by
    /// source address do not count.
    pub fn of(&self, address: IpAddr) -> Place {
        self.ask(address).unwrap_or(Place::Unknown)
    }

    /// Returns the extent of the routes of a family; the largest if the kernel does not answer. A
    /// route that only some packets take counts as well.
    pub fn extent(&self, family: LegFamily) -> Extent {
        let extent = match self.ask(unused_address(family)) {
            Ok(Place::Nowhere) => extent(family),
            Ok(_) => Ok(Extent::Beyond),
            Err(err) => Err(err),
        };
        match extent.map_err(|err| err.raw_os_error()) {
            Ok(extent) => extent,
            // The kernel does not know the family.
            Err(Some(libc::EOPNOTSUPP | libc::EAFNOSUPPORT)) => Extent::Nowhere,
            Err(_) => Extent::Beyond,
        }
    }

    fn ask(&self, address: IpAddr) -> io::Result<Place> {
        let (socket, mut answer) = (self.socket.as_raw_fd(), [0; ANSWER_BYTES_MAX]);
        // An earlier answer, if the kernel had no memory for it in time.
        while recv(socket, &mut answer, MsgFlags::empty()).is_ok() {}
        send(socket, &question(address, self.mark), MsgFlags::empty())?;
        // The kernel answers before send(2) returns.
        let length = recv(socket, &mut answer, MsgFlags::empty())?;
        let message = NetlinkMessage::deserialize(&answer[..length]);
        match message.map_err(io::Error::other)?.payload {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) => Ok(place(&route)),
            NetlinkPayload::Error(error) => match -error.raw_code() {
                // EINVAL is a route of type blackhole, EACCES one of type prohibit.
                libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EINVAL | libc::EACCES => {
                    Ok(Place::Nowhere)
                }
                code => Err(io::Error::from_raw_os_error(code)),
            },
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

fn netlink() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let protocol = SockProtocol::NetlinkRoute;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
    Ok(socket)
}

/// Returns an address that no machine has: one that is not assigned of the IETF's block (RFC 6890
/// section 2.1), and one of the discard prefix of IPv6 (RFC 6666). Laboratories use those for
/// documentation.
pub fn unused_address(family: LegFamily) -> IpAddr {
    match family {
        LegFamily::V4 => Ipv4Addr::new(192, 0, 0, 254).into(),
        LegFamily::V6 => Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1).into(),
    }
}

/// Returns the extent of the routes of all tables.
fn extent(family: LegFamily) -> io::Result<Extent> {
    let socket = netlink()?;
    let family = match family {
        LegFamily::V4 => Family::Inet,
        LegFamily::V6 => Family::Inet6,
    };
    let mut route = RouteMessage::default();
    route.header.address_family = family;
    send(
        socket.as_raw_fd(),
        &request(route, NLM_F_REQUEST | NLM_F_DUMP),
        MsgFlags::empty(),
    )?;
    let (mut extent, mut part) = (Extent::Nowhere, vec![0; DUMP_BYTES]);
    loop {
        // The kernel writes each part while it is read.
        let length = recv(socket.as_raw_fd(), &mut part, MsgFlags::empty())?;
        let mut rest = &part[..length];
        if rest.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        while !rest.is_empty() {
            let message = NetlinkMessage::deserialize(rest).map_err(io::Error::other)?;
            let length = (message.header.length as usize).next_multiple_of(4);
            rest = rest.get(length..).unwrap_or_default();
            match message.payload {
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route))
                    if route.header.address_family == family =>
                {
                    extent = extent.max(extent_of(&route));
                    if extent == Extent::Beyond {
                        return Ok(extent);
                    }
                }
                NetlinkPayload::Done(_) => return Ok(extent),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                _ => {}
            }
        }
    }
}

/// Returns how far a route leads.
fn extent_of(route: &RouteMessage) -> Extent {
    let is_unicast = route.header.kind == RouteType::Unicast;
    if !is_unicast || u8::from(route.header.protocol) == ROUTE_PROTOCOL {
        return Extent::Nowhere;
    }
    let destination = route
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(address)) => Some(IpAddr::V4(*address)),
            RouteAttribute::Destination(RouteAddress::Inet6(address)) => Some(IpAddr::V6(*address)),
            _ => None,
        });
    let Some(destination) = destination else {
        return Extent::Beyond;
    };
    let is_local = match destination {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    if is_local || destination.is_loopback() || destination.is_multicast() {
        return Extent::Nowhere;
    }
    match route.attributes.iter().any(is_gateway) || !is_private(destination) {
        true => Extent::Beyond,
        false => Extent::Beside,
    }
}

/// Returns the request for the route to an address (`RTM_GETROUTE`, rtnetlink(7)).
fn question(address: IpAddr, mark: u32) -> Vec<u8> {
    let mut route = RouteMessage::default();
    let (family, destination) = match address {
        IpAddr::V4(address) => (Family::Inet, RouteAddress::Inet(address)),
        IpAddr::V6(address) => (Family::Inet6, RouteAddress::Inet6(address)),
    };
    route.header.address_family = family;
    route.header.destination_prefix_length = if address.is_ipv4() { 32 } else { 128 };
    route.attributes = vec![
        RouteAttribute::Destination(destination),
        RouteAttribute::Mark(mark),
    ];
    request(route, NLM_F_REQUEST)
}

fn request(route: RouteMessage, flags: u16) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = flags;
    let mut message = NetlinkMessage::new(header, RouteNetlinkMessage::GetRoute(route).into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

fn is_gateway(attribute: &RouteAttribute) -> bool {
    matches!(
        attribute,
        RouteAttribute::Gateway(_) | RouteAttribute::Via(_) | RouteAttribute::MultiPath(_)
    )
}

fn place(route: &RouteMessage) -> Place {
    match route.header.kind {
        RouteType::Unicast if route.attributes.iter().any(is_gateway) => Place::Elsewhere,
        RouteType::Unicast => Place::Attached,
        RouteType::BlackHole | RouteType::Unreachable | RouteType::Prohibit => Place::Nowhere,
        _ => Place::Own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_this_machine() {
        let places = Places::open(0).unwrap();
        for own in ["127.0.0.1", "127.9.9.9", "127.255.255.255"] {
            assert_eq!(places.of(own.parse().unwrap()), Place::Own, "{own}");
        }
        // A machine without IPv6 has no route to it.
        let v6 = places.of("::1".parse().unwrap());
        assert!(matches!(v6, Place::Own | Place::Nowhere), "{v6:?}");
    }

    #[test]
    fn an_address_of_nobody_is_not_here() {
        let places = Places::open(0).unwrap();
        for documentation in ["192.0.2.1", "2001:db8::1"] {
            let place = places.of(documentation.parse().unwrap());
            assert!(!matches!(place, Place::Own | Place::Unknown), "{place:?}");
        }
    }

    #[test]
    fn routes_lead_beyond_by_a_router_or_to_public_networks() {
        let route = |destination: Option<&str>, gateway: Option<&str>| {
            let address = |text: &str| match text.parse().unwrap() {
                IpAddr::V4(address) => RouteAddress::Inet(address),
                IpAddr::V6(address) => RouteAddress::Inet6(address),
            };
            let mut route = RouteMessage::default();
            route.header.kind = RouteType::Unicast;
            let destination = destination.map(|to| RouteAttribute::Destination(address(to)));
            let gateway = gateway.map(|by| RouteAttribute::Gateway(address(by)));
            route.attributes = destination.into_iter().chain(gateway).collect();
            route
        };
        let extent = |to, by| extent_of(&route(to, by));
        let out = |to, by| extent(to, by) == Extent::Beyond;
        assert!(out(None, None) && out(None, Some("fe80::1")));
        assert!(out(Some("2001:db8::"), None) && out(Some("192.0.2.0"), None));
        assert!(out(Some("fd00::"), Some("fe80::1")) && out(Some("10.0.0.0"), Some("10.9.0.1")));
        for beside in ["fd00::", "10.0.0.0", "172.17.0.0"] {
            assert_eq!(extent(Some(beside), None), Extent::Beside, "{beside}");
        }
        for nowhere in ["fe80::", "ff00::", "169.254.0.0", "127.0.0.0", "::1"] {
            assert_eq!(extent(Some(nowhere), None), Extent::Nowhere, "{nowhere}");
        }
        for kind in [
            RouteType::Unreachable,
            RouteType::BlackHole,
            RouteType::Local,
        ] {
            let mut route = route(None, None);
            route.header.kind = kind;
            assert_eq!(extent_of(&route), Extent::Nowhere, "{kind:?}");
        }
        let mut own = route(None, None);
        own.header.protocol = ROUTE_PROTOCOL.into();
        assert_eq!(extent_of(&own), Extent::Nowhere);
    }

    #[test]
    fn the_kernel_lists_its_routes() {
        for family in LegFamily::ALL {
            extent(family).unwrap();
            let places = Places::open(0).unwrap();
            let found = places.of(unused_address(family));
            assert!(places.extent(family) == Extent::Beyond || found == Place::Nowhere);
        }
    }
}
