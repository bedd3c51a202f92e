//! Receive offloads of network devices (`SIOCETHTOOL`, `linux/ethtool.h`).

use std::{io, os::fd::AsRawFd as _};

use socket2::{Domain, Socket, Type};

use super::{interface::request, socket::check};

/// `ETHTOOL_GGRO`: reads generic receive offload.
const GET_GRO: u32 = 0x2b;
/// `ETHTOOL_GFLAGS`: reads flags, including large receive offload.
const GET_FLAGS: u32 = 0x25;
/// `ETH_FLAG_LRO`.
const LRO: u32 = 1 << 15;

/// Receive offloads of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offloads {
    /// Generic receive offload.
    pub gro: bool,
    /// Large receive offload.
    pub lro: bool,
}

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// Returns the offloads of an interface.
///
/// # Errors
/// When no interface has that name, or its driver does not support the query.
pub fn offloads(name: &str) -> io::Result<Offloads> {
    Ok(Offloads {
        gro: get(name, GET_GRO)? != 0,
        lro: get(name, GET_FLAGS)? & LRO != 0,
    })
}

fn get(name: &str, command: u32) -> io::Result<u32> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    let mut value = Value { command, data: 0 };
    let mut request = request(name)?;
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: `request` is an ifreq whose name ends with a zero and whose data points to a struct
    // ethtool_value. Both commands access only these, and both outlive the call.
    let result =
        unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
    check(result)?;
    Ok(value.data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_answers_and_none_other_of_no_name() {
        assert!(!offloads("lo").expect("every machine has it").lro);
        let err = offloads("nonesuch0").expect_err("there is none");
        assert_eq!(err.raw_os_error(), Some(libc::ENODEV));
        assert!(offloads("a_name_that_is_too_long").is_err());
    }
}
