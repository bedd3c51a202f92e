//! What the kernel tells of its networking unasked: rtnetlink's multicast groups.
//!
//! A socket of our own rather than rtnetlink's connection: that queues without a limit, and is
//! over for good when the kernel has had to drop messages.

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
    time::Duration,
};

use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::sleep,
};
use tracing::{debug, warn};

use crate::reactor;

/// More in one datagram than the kernel ever sends unasked.
const DATAGRAM_BYTES_MAX: usize = 16 * 1024;

/// Notices taken at one time, about: the others wait in the kernel.
const AT_ONCE: usize = 1024;

/// Messages begin at multiples of this (NLMSG_ALIGNTO).
const ALIGNMENT: usize = 4;

/// Before a socket is opened again; doubled each time.
const REOPEN_MIN: Duration = Duration::from_secs(1);
const REOPEN_MAX: Duration = Duration::from_secs(60);

/// When to watch anew after a failure.
#[derive(Debug)]
pub struct Retry {
    pause: Duration,
    what: &'static str,
    until_then: &'static str,
}

impl Retry {
    /// Of the kernel's notices. `until_then` is what is amiss meanwhile.
    pub fn new(until_then: &'static str) -> Self {
        Self::of("no notices from the kernel", until_then)
    }

    /// Of something else: `what` has failed.
    pub fn of(what: &'static str, until_then: &'static str) -> Self {
        Self {
            pause: REOPEN_MIN,
            what,
            until_then,
        }
    }

    /// Says why, and waits.
    pub async fn wait(&mut self, err: &io::Error) {
        let (pause, what, until_then) = (self.pause, self.what, self.until_then);
        warn!(error = %err, "{what}, trying again in {pause:?}: until then {until_then}");
        sleep(pause).await;
        self.pause = (2 * pause).min(REOPEN_MAX);
    }
}

/// A group of notices (RTNLGRP_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Interfaces.
    Link,
    /// Neighbours, and whether they answer.
    Neighbour,
}

impl Group {
    const fn bit(self) -> u32 {
        let group = match self {
            Self::Link => libc::RTNLGRP_LINK,
            Self::Neighbour => libc::RTNLGRP_NEIGH,
        };
        1 << (group - 1)
    }
}

/// A netlink socket that hears of all changes in a group.
#[derive(Debug)]
pub struct Notices(AsyncFd<OwnedFd>);

impl Notices {
    /// A socket in the event loop this is called in.
    ///
    /// # Errors
    /// When descriptors or memory are short.
    pub fn open(group: Group) -> io::Result<Self> {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let protocol = SockProtocol::NetlinkRoute;
        let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, group.bit()))?;
        reactor::register(fd, Interest::READABLE).map(Self)
    }

    /// Waits until `pick` has taken something, and returns all that it takes now, in the order of the notices.
    ///
    /// # Errors
    /// When the socket is of no use any more.
    pub async fn next<T>(
        &self,
        pick: impl Fn(&RouteNetlinkMessage) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        let mut picked = Vec::new();
        while picked.is_empty() {
            let mut ready = self.0.readable().await?;
            while picked.len() < AT_ONCE {
                match ready.try_io(|fd| receive(fd, &pick, &mut picked)) {
                    Ok(received) => received?,
                    Err(_would_block) => break,
                }
            }
        }
        Ok(picked)
    }
}

/// Takes one datagram.
fn receive<T>(
    fd: &AsyncFd<OwnedFd>,
    pick: impl Fn(&RouteNetlinkMessage) -> Option<T>,
    picked: &mut Vec<T>,
) -> io::Result<()> {
    let mut buffer = [0; DATAGRAM_BYTES_MAX];
    match recv(fd.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
        Ok(length) => pick_all(&buffer[..length], pick, picked),
        Err(nix::Error::ENOBUFS) => debug!("missed some of the kernel's notices"),
        Err(err) => return Err(err.into()),
    }
    Ok(())
}

/// Reads a datagram as far as it goes.
fn pick_all<T>(
    mut datagram: &[u8],
    pick: impl Fn(&RouteNetlinkMessage) -> Option<T>,
    picked: &mut Vec<T>,
) {
    while let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(datagram) {
        if let NetlinkPayload::InnerMessage(notice) = &message.payload {
            picked.extend(pick(notice));
        }
        let length = (message.header.length as usize).next_multiple_of(ALIGNMENT);
        datagram = datagram.get(length..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::NetlinkHeader;
    use netlink_packet_route::{link::LinkMessage, neighbour::NeighbourMessage};

    use super::*;

    fn bytes(notice: RouteNetlinkMessage) -> Vec<u8> {
        let mut message = NetlinkMessage::new(NetlinkHeader::default(), notice.into());
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    fn link(index: u32) -> Vec<u8> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        bytes(RouteNetlinkMessage::NewLink(message))
    }

    fn links(datagram: &[u8]) -> Vec<u32> {
        let mut picked = Vec::new();
        let index = |notice: &RouteNetlinkMessage| match notice {
            RouteNetlinkMessage::NewLink(link) => Some(link.header.index),
            _ => None,
        };
        pick_all(datagram, index, &mut picked);
        picked
    }

    #[test]
    fn every_notice_of_a_datagram_is_seen() {
        let neighbour = RouteNetlinkMessage::NewNeighbour(NeighbourMessage::default());
        let datagram = [link(1), bytes(neighbour), link(3)];
        assert_eq!(links(&datagram.concat()), [1, 3]);
    }

    #[test]
    fn a_datagram_that_ends_too_soon_is_read_as_far_as_it_goes() {
        let datagram = [1, 2].map(link).concat();
        assert_eq!(links(&datagram[..datagram.len() - 1]), [1]);
        assert!(links(&[]).is_empty());
    }
}
