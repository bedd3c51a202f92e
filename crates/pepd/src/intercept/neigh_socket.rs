//! The kernel's messages about neighbours.
//!
//! A socket of our own rather than rtnetlink's connection: that queues without a limit, and is
//! over for good when the kernel has had to drop messages.

use std::{
    collections::HashSet,
    io,
    net::IpAddr,
    os::fd::{AsRawFd as _, OwnedFd},
};

use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::{
    RouteNetlinkMessage,
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState},
};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};
use tokio::io::{Interest, unix::AsyncFd};
use tracing::debug;

use crate::sys::reactor;

/// More in one datagram than the kernel ever sends unasked.
const DATAGRAM_BYTES_MAX: usize = 16 * 1024;

/// Failed neighbours taken at one time; the others wait in the kernel.
const HOPS_MAX: usize = 1024;

/// Messages begin at multiples of this (NLMSG_ALIGNTO).
const ALIGNMENT: usize = 4;

/// A neighbour, or the next hop toward a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Hop {
    pub(super) interface: u32,
    pub(super) address: IpAddr,
}

/// A netlink socket that hears of all changes of neighbours.
#[derive(Debug)]
pub(super) struct NeighbourSocket(AsyncFd<OwnedFd>);

impl NeighbourSocket {
    pub(super) fn open() -> io::Result<Self> {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let protocol = SockProtocol::NetlinkRoute;
        let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
        let groups = 1 << (libc::RTNLGRP_NEIGH - 1);
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
        reactor::register(fd, Interest::READABLE).map(Self)
    }

    /// Waits for neighbours that do not answer.
    pub(super) async fn failed(&self) -> io::Result<HashSet<Hop>> {
        let mut hops = HashSet::new();
        while hops.is_empty() {
            let mut ready = self.0.readable().await?;
            while hops.len() < HOPS_MAX {
                match ready.try_io(|fd| receive(fd, &mut hops)) {
                    Ok(received) => received?,
                    Err(_would_block) => break,
                }
            }
        }
        Ok(hops)
    }
}

/// Takes one datagram.
fn receive(fd: &AsyncFd<OwnedFd>, hops: &mut HashSet<Hop>) -> io::Result<()> {
    let mut buffer = [0; DATAGRAM_BYTES_MAX];
    match recv(fd.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
        Ok(length) => hops.extend(failed_hops(&buffer[..length])),
        // Whoever is concerned repeats its SYN, and the neighbour fails again.
        Err(nix::Error::ENOBUFS) => debug!("missed some messages about neighbours"),
        Err(err) => return Err(err.into()),
    }
    Ok(())
}

fn failed_hops(mut datagram: &[u8]) -> Vec<Hop> {
    let mut hops = Vec::new();
    while let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(datagram) {
        if let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(neighbour)) =
            &message.payload
        {
            hops.extend(failed_hop(neighbour));
        }
        let length = (message.header.length as usize).next_multiple_of(ALIGNMENT);
        datagram = datagram.get(length..).unwrap_or_default();
    }
    hops
}

fn failed_hop(message: &NeighbourMessage) -> Option<Hop> {
    if message.header.state != NeighbourState::Failed {
        return None;
    }
    let address = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => {
                Some((*address).into())
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => {
                Some((*address).into())
            }
            _ => None,
        });
    Some(Hop {
        interface: message.header.ifindex,
        address: address?,
    })
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::NetlinkHeader;

    use super::*;

    fn neighbour(last: u8, state: NeighbourState) -> Vec<u8> {
        let mut message = NeighbourMessage::default();
        message.header.family = netlink_packet_route::AddressFamily::Inet;
        message.header.ifindex = 3;
        message.header.state = state;
        let address = NeighbourAddress::Inet([192, 0, 2, last].into());
        message.attributes = vec![NeighbourAttribute::Destination(address)];
        let payload = RouteNetlinkMessage::NewNeighbour(message);
        let mut message = NetlinkMessage::new(NetlinkHeader::default(), payload.into());
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    fn hop(last: u8) -> Hop {
        Hop {
            interface: 3,
            address: [192, 0, 2, last].into(),
        }
    }

    #[test]
    fn every_failed_neighbour_of_a_datagram_is_found() {
        let datagram = [
            neighbour(1, NeighbourState::Failed),
            neighbour(2, NeighbourState::Reachable),
            neighbour(3, NeighbourState::Failed),
        ];
        assert_eq!(failed_hops(&datagram.concat()), [hop(1), hop(3)]);
    }

    #[test]
    fn a_datagram_that_ends_too_soon_is_read_as_far_as_it_goes() {
        let datagram = [1, 2].map(|last| neighbour(last, NeighbourState::Failed));
        let datagram = datagram.concat();
        assert_eq!(failed_hops(&datagram[..datagram.len() - 1]), [hop(1)]);
        assert_eq!(failed_hops(&[]), []);
    }
}
