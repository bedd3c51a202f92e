//! Packet sockets that see filtered packets of all interfaces (packet(7)).

use std::{
    io::{self, IoSliceMut},
    os::fd::{AsFd, AsRawFd as _, BorrowedFd},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use nix::{
    errno::Errno,
    net::if_::if_indextoname,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        socket::{ControlMessageOwned, LinkAddr, MsgFlags, recvmsg, setsockopt, sockopt},
        time::TimeSpec,
    },
};
use socket2::{Domain, SockFilter, Socket, Type};

use super::socket::{check, get_of};

/// `PACKET_STATISTICS` of `include/uapi/linux/if_packet.h`.
const PACKET_STATISTICS: libc::c_int = 6;

/// A socket that sees packets from their IP header on.
#[derive(Debug)]
pub struct PacketSocket(Socket);

/// Length of the header that Linux gives to packets of any interface (LINKTYPE_LINUX_SLL).
pub const COOKED_LEN: usize = 16;

/// A captured packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// The time since 1970.
    pub at: Duration,
    /// The packet's length, which may exceed the received bytes.
    pub length: usize,
    /// The index of its interface.
    pub interface: usize,
    /// True if the packet leaves this machine.
    pub is_outgoing: bool,
    /// The substitute for its link-layer header.
    pub cooked: [u8; COOKED_LEN],
}

impl Seen {
    /// Returns the name of the interface, or its index if the interface has disappeared.
    pub fn interface_name(&self) -> String {
        let index = u32::try_from(self.interface).unwrap_or(0);
        let name = if_indextoname(index).ok();
        let name = name.and_then(|name| name.into_string().ok());
        name.unwrap_or_else(|| index.to_string())
    }
}

/// The kernel's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statistics {
    /// Packets dropped for lack of buffer space.
    pub dropped: u32,
}

impl PacketSocket {
    /// Opens a socket for packets that match the filter, with a receive buffer of about `buffer`
    /// bytes.
    ///
    /// # Errors
    /// As socket(2) and bind(2): EPERM without CAP_NET_RAW.
    pub fn open(filter: &[SockFilter], buffer: usize) -> io::Result<Self> {
        Self::open_for(libc::ETH_P_ALL as u16, filter, buffer)
    }

    /// Opens a socket for incoming packets of one protocol, such as `ETH_P_IP`. Packets that leave
    /// this machine are not examined.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_for(protocol: u16, filter: &[SockFilter], buffer: usize) -> io::Result<Self> {
        // Without a protocol the socket receives no packet before the filter is set.
        let socket = Socket::new(Domain::PACKET, Type::DGRAM, None)?;
        socket.attach_filter(filter)?;
        // Exceeds the limit `net.core.rmem_max`, where permitted.
        if setsockopt(&socket, sockopt::RcvBufForce, &buffer).is_err() {
            socket.set_recv_buffer_size(buffer)?;
        }
        socket.set_nonblocking(true)?;
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
        bind(&socket, protocol)?;
        Ok(Self(socket))
    }

    /// Makes an interface accept packets for all multicast groups, as long as this socket is open
    /// (`PACKET_MR_ALLMULTI`).
    ///
    /// # Errors
    /// As setsockopt(2): ENODEV where there is no such interface.
    pub fn hear_all_groups(&self, interface: u32) -> io::Result<()> {
        let request = libc::packet_mreq {
            mr_ifindex: libc::c_int::try_from(interface).map_err(io::Error::other)?,
            mr_type: libc::PACKET_MR_ALLMULTI as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        let length = size_of::<libc::packet_mreq>() as libc::socklen_t;
        // SAFETY: `request` has `length` bytes and outlives the call.
        let result = unsafe {
            libc::setsockopt(
                self.0.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_ADD_MEMBERSHIP,
                (&raw const request).cast(),
                length,
            )
        };
        check(result).map(drop)
    }

    /// Sends a packet, from its IP header on, out of an interface to an Ethernet address.
    ///
    /// # Errors
    /// As sendto(2): EMSGSIZE for one that is too long, ENOBUFS where the interface has no room.
    pub fn send_to(
        &self,
        packet: &[u8],
        protocol: u16,
        interface: u32,
        ethernet: [u8; 6],
    ) -> io::Result<()> {
        let mut address = address(protocol);
        address.sll_ifindex = libc::c_int::try_from(interface).map_err(io::Error::other)?;
        address.sll_halen = 6;
        address.sll_addr[..6].copy_from_slice(&ethernet);
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: `packet` and `address` have the given lengths and outlive the call.
        let result = unsafe {
            libc::sendto(
                self.0.as_raw_fd(),
                packet.as_ptr().cast(),
                packet.len(),
                libc::MSG_DONTWAIT,
                (&raw const address).cast(),
                length,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Waits until a packet has arrived, or for `limit`.
    ///
    /// # Errors
    /// As poll(2).
    pub fn wait(&self, limit: Duration) -> io::Result<()> {
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        match poll(&mut fds, limit) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(err) => Err(err.into()),
        }
    }

    /// Receives the next packet, truncated to the buffer; `None` when there is none. Packets on
    /// loopback are seen once.
    ///
    /// # Errors
    /// As recvmsg(2).
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<Seen>> {
        loop {
            let mut control = nix::cmsg_space!(TimeSpec);
            let mut parts = [IoSliceMut::new(buffer)];
            let fd = self.0.as_raw_fd();
            let flags = MsgFlags::MSG_TRUNC;
            let received = recvmsg::<LinkAddr>(fd, &mut parts, Some(&mut control), flags);
            let message = match received {
                Ok(message) => message,
                Err(Errno::EAGAIN) => return Ok(None),
                // One interface went down; the others still deliver.
                Err(Errno::EINTR | Errno::ENETDOWN) => continue,
                Err(err) => return Err(err.into()),
            };
            let Some(from) = message.address else {
                continue;
            };
            let is_outgoing = from.pkttype() == libc::PACKET_OUTGOING;
            if is_outgoing && from.hatype() == libc::ARPHRD_LOOPBACK {
                continue;
            }
            let times = message.cmsgs().ok();
            let mut times = times.into_iter().flatten();
            let at = times.find_map(|message| match message {
                ControlMessageOwned::ScmTimestampns(at) => Some(Duration::from(at)),
                _ => None,
            });
            let now = || SystemTime::now().duration_since(UNIX_EPOCH);
            return Ok(Some(Seen {
                at: at.unwrap_or_else(|| now().unwrap_or_default()),
                length: message.bytes,
                interface: from.ifindex(),
                is_outgoing,
                cooked: cooked(&from),
            }));
        }
    }

    /// Returns the counters since the last call.
    ///
    /// # Errors
    /// As getsockopt(2).
    pub fn statistics(&self) -> io::Result<Statistics> {
        let mut counts = [0; 2 * size_of::<u32>()];
        let fd = self.0.as_raw_fd();
        get_of(fd, libc::SOL_PACKET, PACKET_STATISTICS, &mut counts)?;
        let [_, dropped] = [0, 4].map(|at| {
            let word: [u8; 4] = std::array::from_fn(|index| counts[at + index]);
            u32::from_ne_bytes(word)
        });
        Ok(Statistics { dropped })
    }
}

/// Returns the packet's direction, the kind of interface, the sender's link-layer address, and the
/// protocol; each in network byte order.
fn cooked(from: &LinkAddr) -> [u8; COOKED_LEN] {
    let length = from.halen().min(8) as u16;
    let words = [u16::from(from.pkttype()), from.hatype(), length];
    let mut header = [0; COOKED_LEN];
    for (place, word) in header.as_chunks_mut().0.iter_mut().zip(words) {
        *place = word.to_be_bytes();
    }
    let address = from.addr().filter(|_| length == 6);
    header[6..12].copy_from_slice(&address.unwrap_or_default());
    header[14..].copy_from_slice(&from.protocol().to_ne_bytes());
    header
}

fn address(protocol: u16) -> libc::sockaddr_ll {
    // SAFETY: all zeros are an address of this kind.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address
}

/// Binds to one protocol, or all, on all interfaces.
fn bind(socket: &Socket, protocol: u16) -> io::Result<()> {
    let address = address(protocol);
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: `address` has `length` bytes and outlives the call.
    let result = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    check(result).map(drop)
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
