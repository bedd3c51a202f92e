//! Signals of the running pepd to its rules of iptables.
//!
//! Unlike nft, xt_TPROXY drops a packet without a listener, so rules that outlive pepd would cut
//! hosts off. So pepd sends a UDP packet to this machine every second. A rule enters it into a list
//! (xt_recent), and the gate is open only for as long as the entry is recent. Another mark of the
//! packet closes the gate at once, without running a program. Only processes with CAP_NET_ADMIN can
//! set these marks.
//!
//! The last rule drops the signal, and sending it fails (EPERM): pepd thus notices within a second
//! that its rules are gone.

use std::{
    io::{self, ErrorKind},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::AsFd as _,
};

use nix::sys::socket::{setsockopt, sockopt};
use pepd_sys::{gate::Gate, marks::MarkSet};

use crate::rules::Family;

/// List with an entry while pepd takes new flows.
pub const OPEN: &str = "open";
/// List with an entry while pepd runs.
pub const ALIVE: &str = "alive";

/// Returns the mark of signals.
pub fn signal_mark(marks: MarkSet, gate: Gate) -> u32 {
    match gate {
        Gate::Open => marks.client_leg(),
        Gate::Closed => marks.passed(),
    }
}

/// Sends a signal to the rules of a family. Returns true if they took it.
///
/// # Errors
/// When no descriptors are left, or the family is unavailable.
pub fn send(family: Family, port: u16, mark: u32) -> io::Result<bool> {
    let address: SocketAddr = match family {
        Family::V4 => (Ipv4Addr::LOCALHOST, 0).into(),
        Family::V6 => (Ipv6Addr::LOCALHOST, 0).into(),
    };
    let socket = UdpSocket::bind(address)?;
    socket.set_nonblocking(true)?;
    setsockopt(&socket.as_fd(), sockopt::Mark, &mark)?;
    match socket.send_to(&[], (address.ip(), port)) {
        Ok(_) => Ok(false),
        Err(err) if err.kind() == ErrorKind::PermissionDenied => Ok(true),
        Err(err) => Err(err),
    }
}
