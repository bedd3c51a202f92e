//! Notifications of the kernel's networking: rtnetlink's multicast groups.
//!
//! A plain socket rather than rtnetlink's connection, which queues without a limit, and ends for
//! good when the kernel has dropped messages.

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
    time::Duration,
};

use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, setsockopt,
    socket, sockopt,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::sleep,
};
use tracing::{debug, warn};

use crate::reactor;

/// A buffer longer than any datagram of a notification.
const DATAGRAM_BYTES_MAX: usize = 16 * 1024;

/// The approximate maximum of notices read at once: the others wait in the kernel.
const AT_ONCE: usize = 1024;

/// The alignment of messages (NLMSG_ALIGNTO).
const ALIGNMENT: usize = 4;

/// The initial wait before a socket is reopened; doubled each time.
const REOPEN_MIN: Duration = Duration::from_secs(1);
const REOPEN_MAX: Duration = Duration::from_secs(60);

/// Backoff for watching again after a failure.
#[derive(Debug)]
pub struct Retry {
    pause: Duration,
    what: &'static str,
    until_then: &'static str,
}

impl Retry {
    /// Creates the backoff for the kernel's notices. `until_then` names the consequence meanwhile.
    pub fn new(until_then: &'static str) -> Self {
        Self::watching("no notifications from the kernel", until_then)
    }

    /// Creates a backoff for another watch: `what` has failed.
    pub fn watching(what: &'static str, until_then: &'static str) -> Self {
        Self {
            pause: REOPEN_MIN,
            what,
            until_then,
        }
    }

    /// Logs the error, and waits.
    pub async fn wait(&mut self, err: &io::Error) {
        let (pause, what, until_then) = (self.pause, self.what, self.until_then);
        warn!(error = %err, "{what}: retrying in {pause:?}; until then {until_then}");
        sleep(pause).await;
        self.pause = (2 * pause).min(REOPEN_MAX);
    }
}

/// A group of notices (RTNLGRP_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Interfaces.
    Link,
    /// Neighbours, and their reachability.
    Neighbour,
    /// Policy rules.
    Rule,
}

impl Group {
    const fn bit(self) -> u32 {
        match self {
            Self::Link => bit(libc::RTNLGRP_LINK),
            Self::Neighbour => bit(libc::RTNLGRP_NEIGH),
            Self::Rule => bit(libc::RTNLGRP_IPV4_RULE) | bit(libc::RTNLGRP_IPV6_RULE),
        }
    }
}

/// Groups of rtnetlink whose notices [`Changes`] counts: two are settings of interfaces, among them
/// forwarding and the reverse path check, and the last one next hops that routes name.
const WATCHED: [u32; 10] = [
    libc::RTNLGRP_LINK,
    libc::RTNLGRP_IPV4_IFADDR,
    libc::RTNLGRP_IPV4_ROUTE,
    libc::RTNLGRP_IPV4_RULE,
    libc::RTNLGRP_IPV6_IFADDR,
    libc::RTNLGRP_IPV6_ROUTE,
    libc::RTNLGRP_IPV6_RULE,
    libc::RTNLGRP_IPV4_NETCONF,
    libc::RTNLGRP_IPV6_NETCONF,
    NEXT_HOPS,
];

/// `RTNLGRP_NEXTHOP` (Linux 5.3); libc has it not on all systems.
const NEXT_HOPS: u32 = 32;

/// Maximum of notices read in one call of [`Changes::any`]; the next call finds the others.
const NOTICES_READ: usize = 64;

/// Watch for changes of interfaces and their settings, addresses, routes and policy rules in this
/// network namespace, by any program. Costs a system call a look, and wakes no thread.
#[derive(Debug)]
pub struct Changes(OwnedFd);

impl Changes {
    /// Begins to watch.
    ///
    /// # Errors
    /// When descriptors or memory are short.
    pub fn open() -> io::Result<Self> {
        let fd = subscribe(WATCHED.map(bit).iter().sum())?;
        // Content is not read, and a full buffer is a change as well.
        setsockopt(&fd, sockopt::RcvBuf, &1)?;
        Ok(Self(fd))
    }

    /// Returns true if there were changes since the last call, or if the kernel does not say.
    pub fn any(&self) -> bool {
        for read in 0..NOTICES_READ {
            let received = recv(self.0.as_raw_fd(), &mut [0; 1], MsgFlags::MSG_DONTWAIT);
            if received == Err(nix::Error::EAGAIN) {
                return read > 0;
            }
        }
        true
    }
}

const fn bit(group: u32) -> u32 {
    1 << (group - 1)
}

/// Returns a socket that receives the notices of these groups.
fn subscribe(groups: u32) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let protocol = SockProtocol::NetlinkRoute;
    let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
    bind(fd.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
    Ok(fd)
}

/// A netlink socket that receives all changes in a group.
#[derive(Debug)]
pub struct Notices(AsyncFd<OwnedFd>);

impl Notices {
    /// Opens a socket in the current event loop.
    ///
    /// # Errors
    /// When descriptors or memory are short.
    pub fn open(group: Group) -> io::Result<Self> {
        let fd = subscribe(group.bit())?;
        reactor::register(fd, Interest::READABLE).map(Self)
    }

    /// Waits until `pick` accepts a notice, and returns all that it accepts now, in their order.
    ///
    /// # Errors
    /// When the socket has failed for good.
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

/// Receives one datagram.
fn receive<T>(
    fd: &AsyncFd<OwnedFd>,
    pick: impl Fn(&RouteNetlinkMessage) -> Option<T>,
    picked: &mut Vec<T>,
) -> io::Result<()> {
    let mut buffer = [0; DATAGRAM_BYTES_MAX];
    match recv(fd.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
        Ok(length) => pick_all(&buffer[..length], pick, picked),
        Err(nix::Error::ENOBUFS) => debug!("the kernel dropped some notifications"),
        Err(err) => return Err(err.into()),
    }
    Ok(())
}

/// Parses a datagram up to the first malformed message.
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
