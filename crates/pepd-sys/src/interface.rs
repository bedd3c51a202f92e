//! Properties of network interfaces by name (`netdevice(7)`), in the current network namespace;
//! /sys may show another one.

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
};

use netlink_packet_core::NlasIterator;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket,
};
use pep_core::share::Transmitted;
use socket2::{Domain, Socket, Type};

use super::socket::check;

/// Returns a request for the interface of that name.
///
/// # Errors
/// When the name is too long for an interface.
pub(super) fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: `ifreq` is a C struct of integers, addresses and pointers; all zeroes is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

/// Returns the MTU in bytes.
///
/// # Errors
/// When no interface has that name.
pub fn mtu(name: &str) -> io::Result<usize> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    let mut request = request(name)?;
    // SAFETY: `request` is an ifreq whose name ends with a zero and which outlives the call. The
    // command reads the name and writes `ifru_mtu`.
    let result =
        unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request) };
    check(result)?;
    // SAFETY: the command has succeeded, so `ifru_mtu` is the initialised field.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    usize::try_from(mtu).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Transmit counters of the interface with a name, which may come and go.
#[derive(Debug)]
pub struct TransmitCounters {
    socket: OwnedFd,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl TransmitCounters {
    /// Opens a netlink socket for queries of the interface.
    ///
    /// # Errors
    /// When no socket can be opened.
    pub fn new(name: &str) -> io::Result<Self> {
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            SockProtocol::NetlinkRoute,
        )?;
        Ok(Self {
            socket,
            request: link_request(name),
            answer: vec![0; ANSWER_BYTES_MAX],
        })
    }

    /// Returns what the interface has transmitted since it was created. The counters may include
    /// packets of other namespaces that it forwards.
    ///
    /// # Errors
    /// `NotFound` when no interface has that name; otherwise as send(2) and recv(2).
    pub fn read(&mut self) -> io::Result<Transmitted> {
        let socket = self.socket.as_raw_fd();
        // An earlier answer, if the kernel had no memory for it in time.
        while recv(socket, &mut self.answer, MsgFlags::empty()).is_ok() {}
        send(socket, &self.request, MsgFlags::empty())?;
        // The kernel answers before send(2) returns.
        let bytes = recv(socket, &mut self.answer, MsgFlags::empty())?;
        transmitted(&self.answer[..bytes])
    }
}

/// Longer than any description of one interface without its virtual functions.
const ANSWER_BYTES_MAX: usize = 32 * 1024;

/// Length of `struct nlmsghdr` and of `struct ifinfomsg`.
const HEADER: usize = 16;

/// Bytes of an Ethernet header, which interfaces count and `link.rate` does not.
const ETHERNET: u64 = 14;

/// Returns a request for the interface of that name (`RTM_GETLINK`, rtnetlink(7)).
fn link_request(name: &str) -> Vec<u8> {
    let attribute = 4 + name.len() + 1;
    let len = 2 * HEADER + attribute.next_multiple_of(4);
    let mut request = Vec::with_capacity(len);
    request.extend((len as u32).to_ne_bytes());
    request.extend(libc::RTM_GETLINK.to_ne_bytes());
    request.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    // Sequence number, port, and an empty `ifinfomsg`.
    request.resize(2 * HEADER, 0);
    request.extend((attribute as u16).to_ne_bytes());
    request.extend(libc::IFLA_IFNAME.to_ne_bytes());
    request.extend(name.bytes());
    request.resize(len, 0);
    request
}

/// Returns the counters in the kernel's answer.
fn transmitted(answer: &[u8]) -> io::Result<Transmitted> {
    let malformed = || io::Error::from(io::ErrorKind::InvalidData);
    let kind = answer.get(4..6).ok_or_else(malformed)?;
    if kind == (libc::NLMSG_ERROR as u16).to_ne_bytes() {
        let code = answer.get(HEADER..HEADER + 4).ok_or_else(malformed)?;
        let code = i32::from_ne_bytes(code.try_into().map_err(|_| malformed())?);
        return Err(match -code {
            libc::ENODEV => io::ErrorKind::NotFound.into(),
            code => io::Error::from_raw_os_error(code),
        });
    }
    let device = answer
        .get(HEADER + 2..HEADER + 4)
        .and_then(|device| device.try_into().ok())
        .map(u16::from_ne_bytes)
        .ok_or_else(malformed)?;
    let attributes = answer.get(2 * HEADER..).ok_or_else(malformed)?;
    let stats = NlasIterator::new(attributes)
        .map_while(Result::ok)
        .find(|attribute| attribute.kind() == libc::IFLA_STATS64)
        .ok_or_else(malformed)?;
    // `struct rtnl_link_stats64`: received and transmitted packets, then bytes.
    let stats = stats.value().as_chunks().0;
    let [_, packets, _, bytes, ..] = *stats else {
        return Err(malformed());
    };
    let [packets, bytes] = [packets, bytes].map(u64::from_ne_bytes);
    let header = match device {
        libc::ARPHRD_ETHER => ETHERNET,
        _ => 0,
    };
    Ok(Transmitted {
        packets,
        bytes: bytes.saturating_sub(header * packets),
    })
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn the_loopback_interface_has_an_mtu_and_none_other_of_no_name() {
        assert!(mtu("lo").expect("every machine has it") >= 1500);
        let err = mtu("nonesuch0").expect_err("there is none");
        assert_eq!(err.raw_os_error(), Some(libc::ENODEV));
        assert!(mtu("a_name_that_is_too_long").is_err());
    }

    #[test]
    fn packets_of_the_loopback_interface_count_from_the_ip_header_on() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut counters = TransmitCounters::new("lo").unwrap();
        let before = counters.read().unwrap();
        for _ in 0..10 {
            socket
                .send_to(&[0; 1000], socket.local_addr().unwrap())
                .unwrap();
        }
        let after = counters.read().unwrap();
        // Other tests may send meanwhile.
        let packets = after.packets - before.packets;
        let bytes = after.bytes - before.bytes;
        assert!(packets >= 10, "{packets}");
        assert!(bytes >= 10 * 1028, "{bytes}");
        assert!(
            packets > 10 || bytes == 10 * 1028,
            "{bytes} bytes in {packets} packets"
        );
    }

    #[test]
    fn counters_of_no_interface_are_not_found() {
        let mut counters = TransmitCounters::new("nonesuch0").unwrap();
        for _ in 0..2 {
            let err = counters.read().unwrap_err();
            assert_eq!(err.kind(), io::ErrorKind::NotFound);
        }
    }

    #[test]
    fn answers_that_end_too_soon_are_errors() {
        let mut counters = TransmitCounters::new("lo").unwrap();
        counters.read().unwrap();
        let answer = counters.answer;
        let whole = u32::from_ne_bytes(answer[..4].try_into().unwrap()) as usize;
        assert!(transmitted(&answer[..whole]).is_ok());
        for len in 0..2 * HEADER + 4 {
            assert!(transmitted(&answer[..len]).is_err(), "{len} bytes");
        }
    }
}
