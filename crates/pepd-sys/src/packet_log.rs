//! Packets that rules of the packet filter copy to programs (NFLOG, nfnetlink_log).

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket,
    sockopt,
};
use tokio::io::{Interest, unix::AsyncFd};

use crate::{netlink_bytes as netlink, reactor};

/// Types of messages (`NFNL_SUBSYS_ULOG`, `include/uapi/linux/netfilter/nfnetlink_log.h`).
const PACKET: u16 = (libc::NFNL_SUBSYS_ULOG << 8 | libc::NFULNL_MSG_PACKET) as u16;
const CONFIG: u16 = (libc::NFNL_SUBSYS_ULOG << 8 | libc::NFULNL_MSG_CONFIG) as u16;
const COPY_PACKET: u8 = libc::NFULNL_COPY_PACKET as u8;

/// Lengths of a `struct nfgenmsg` and of an attribute's header.
const HEADER: usize = 4;
const ATTRIBUTE: usize = 4;

/// Longer than a copied packet with its attributes.
const MESSAGE_BYTES_MAX: usize = 4096;

/// Copies that wait for the program, in bytes; the kernel drops further ones.
const WAITING_BYTES: usize = 1 << 20;

/// Maximum of packets read at once: other tasks have their turn.
const AT_ONCE: usize = 256;

/// Reader of the copies of one group.
#[derive(Debug)]
pub struct PacketLog {
    socket: AsyncFd<OwnedFd>,
}

impl PacketLog {
    /// Begins to read the group, the first `bytes` of each packet. Must be called within a tokio
    /// runtime.
    ///
    /// # Errors
    /// EPERM if another program reads the group, or without CAP_NET_ADMIN; others where the kernel
    /// has no such log or descriptors are short.
    pub fn open(group: u16, bytes: u16) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let protocol = SockProtocol::NetlinkNetFilter;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
        // Beyond `net.core.rmem_max`, where the process may do that.
        if setsockopt(&socket, sockopt::RcvBufForce, &WAITING_BYTES).is_err() {
            setsockopt(&socket, sockopt::RcvBuf, &WAITING_BYTES)?;
        }
        // One packet a message, at once: the kernel would otherwise wait for more.
        let mode = [&u32::from(bytes).to_be_bytes()[..], &[COPY_PACKET, 0]].concat();
        let settings = [
            attribute(libc::NFULA_CFG_CMD, &[libc::NFULNL_CFG_CMD_BIND as u8]),
            [
                attribute(libc::NFULA_CFG_MODE, &mode),
                attribute(libc::NFULA_CFG_QTHRESH, &1_u32.to_be_bytes()),
            ]
            .concat(),
        ];
        for setting in settings {
            let header = [&[libc::AF_UNSPEC as u8, 0][..], &group.to_be_bytes()].concat();
            let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
            let request = netlink::request(CONFIG, flags, &[header, setting].concat());
            send(socket.as_raw_fd(), &request, MsgFlags::empty())?;
            acknowledged(&socket)?;
        }
        let socket = reactor::register(socket, Interest::READABLE)?;
        Ok(Self { socket })
    }

    /// Waits for a packet, and calls `each` with those that have arrived: the prefix that its rule
    /// sets, and its first bytes from the IP header on. Cancel-safe.
    ///
    /// # Errors
    /// When the socket has failed for good.
    pub async fn next(&self, mut each: impl FnMut(&[u8], &[u8])) -> io::Result<()> {
        let mut any = false;
        while !any {
            let mut ready = self.socket.readable().await?;
            let mut buffer = [0; MESSAGE_BYTES_MAX];
            for _ in 0..AT_ONCE {
                let received = ready
                    .try_io(|socket| Ok(recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?));
                match received {
                    Ok(Ok(length)) => {
                        any = true;
                        packets(&buffer[..length], &mut each);
                    }
                    // Some were dropped: hosts repeat what they send.
                    Ok(Err(err)) if err.raw_os_error() == Some(libc::ENOBUFS) => {}
                    Ok(Err(err)) => return Err(err),
                    Err(_would_block) => break,
                }
            }
        }
        Ok(())
    }
}

/// Returns an attribute, padded.
fn attribute(kind: libc::c_int, value: &[u8]) -> Vec<u8> {
    let length = (ATTRIBUTE + value.len()) as u16;
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend((kind as u16).to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Receives the kernel's answer to a request. Packets that come before it are dropped.
fn acknowledged(socket: &OwnedFd) -> io::Result<()> {
    let mut answer = [0; MESSAGE_BYTES_MAX];
    loop {
        // The kernel answers before send(2) returns.
        let length = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
        let mut messages = netlink::messages(&answer[..length]);
        let error = messages.find(|(kind, _)| *kind == libc::NLMSG_ERROR as u16);
        if let Some((_, body)) = error {
            return match netlink::error(body)? {
                0 => Ok(()),
                code => Err(io::Error::from_raw_os_error(code)),
            };
        }
    }
}

/// Calls `each` for the packets in a datagram of netlink.
fn packets(bytes: &[u8], each: &mut impl FnMut(&[u8], &[u8])) {
    let messages = netlink::messages(bytes).filter(|(kind, _)| *kind == PACKET);
    for (_, body) in messages {
        let attributes = body.get(HEADER..).unwrap_or_default();
        let of = |wanted: libc::c_int| {
            let mut all = netlink::attributes(attributes);
            all.find_map(|(kind, value)| (kind == wanted as u16).then_some(value))
        };
        // A text of C.
        let prefix = of(libc::NFULA_PREFIX).unwrap_or_default();
        let prefix = prefix.split(|byte| *byte == 0).next().unwrap_or_default();
        if let Some(packet) = of(libc::NFULA_PAYLOAD) {
            each(prefix, packet);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_read_with_their_prefixes_and_nonsense_is_not() {
        let message = |attributes: &[u8]| {
            let body = [&[2, 0, 0, 7][..], attributes].concat();
            netlink::request(PACKET, 0, &body)
        };
        let prefix = attribute(libc::NFULA_PREFIX, b"lan\0");
        let packet = attribute(libc::NFULA_PAYLOAD, &[4, 5, 6]);
        let datagram = [
            message(&[prefix, packet.clone()].concat()),
            message(&packet),
            message(&[]),
            netlink::request(CONFIG, 0, &packet),
        ]
        .concat();
        let read = |bytes: &[u8]| {
            let mut all = Vec::new();
            packets(bytes, &mut |prefix, packet| {
                all.push((prefix.to_vec(), packet.to_vec()));
            });
            all
        };
        let whole = (b"lan".to_vec(), vec![4, 5, 6]);
        let bare = (Vec::new(), vec![4, 5, 6]);
        assert_eq!(read(&datagram), [whole, bare]);
        for length in 0..datagram.len() {
            assert!(read(&datagram[..length]).len() <= 2);
        }
    }
}
