//! Properties of network interfaces by name (`netdevice(7)`), in the current network namespace;
//! /sys may show another one.

use std::{io, os::fd::AsRawFd as _};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_has_an_mtu_and_none_other_of_no_name() {
        assert!(mtu("lo").expect("every machine has it") >= 1500);
        let err = mtu("nonesuch0").expect_err("there is none");
        assert_eq!(err.raw_os_error(), Some(libc::ENODEV));
        assert!(mtu("a_name_that_is_too_long").is_err());
    }
}
