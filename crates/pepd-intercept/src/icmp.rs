//! ICMP errors that the kernel kept for a socket.

use std::{
    io::IoSliceMut,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsRawFd as _, BorrowedFd},
};

use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sockaddr_in, sockaddr_in6,
};
use pep_core::syn::packet::IcmpError;

/// Returns the oldest ICMP error in the error queue of a socket with IP_RECVERR or IPV6_RECVERR, if
/// one names its sender.
pub fn take_error(fd: BorrowedFd<'_>) -> Option<IcmpError> {
    let mut data = [0; 256];
    let mut iov = [IoSliceMut::new(&mut data)];
    let mut control = nix::cmsg_space!(libc::sock_extended_err, sockaddr_in6);
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    let message =
        recvmsg::<SockaddrStorage>(fd.as_raw_fd(), &mut iov, Some(&mut control), flags).ok()?;
    message.cmsgs().ok()?.find_map(|control| match control {
        ControlMessageOwned::Ipv4RecvErr(err, from) if err.ee_origin == libc::SO_EE_ORIGIN_ICMP => {
            icmp_error(&err, v4(from?))
        }
        ControlMessageOwned::Ipv6RecvErr(err, from)
            if err.ee_origin == libc::SO_EE_ORIGIN_ICMP6 =>
        {
            icmp_error(&err, v6(from?))
        }
        _ => None,
    })
}

fn icmp_error(err: &libc::sock_extended_err, from: IpAddr) -> Option<IcmpError> {
    Some(IcmpError {
        from,
        kind: err.ee_type,
        code: err.ee_code,
        info: err.ee_info,
    })
}

fn v4(address: sockaddr_in) -> IpAddr {
    Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).into()
}

fn v6(address: sockaddr_in6) -> IpAddr {
    Ipv6Addr::from(address.sin6_addr.s6_addr).into()
}
