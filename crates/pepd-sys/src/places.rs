//! Location of addresses: on this machine, in a network of it, or behind a router.
//!
//! The kernel's routes decide at each question, so that every change counts at once.

use std::{
    io,
    net::IpAddr,
    os::fd::{AsRawFd as _, OwnedFd},
};

use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::{
    AddressFamily as Family, RouteNetlinkMessage,
    route::{RouteAddress, RouteAttribute, RouteMessage, RouteType},
};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket,
};
use pep_core::reach::Place;

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
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let protocol = SockProtocol::NetlinkRoute;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
        Ok(Self { socket, mark })
    }

    /// Returns the place of an address; [`Place::Unknown`] if the kernel does not answer. Rules by
    /// source address do not count.
    pub fn of(&self, address: IpAddr) -> Place {
        self.ask(address).unwrap_or(Place::Unknown)
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
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST;
    let mut message = NetlinkMessage::new(header, RouteNetlinkMessage::GetRoute(route).into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

fn place(route: &RouteMessage) -> Place {
    let is_gateway = |attribute: &RouteAttribute| {
        matches!(
            attribute,
            RouteAttribute::Gateway(_) | RouteAttribute::Via(_)
        )
    };
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
}
