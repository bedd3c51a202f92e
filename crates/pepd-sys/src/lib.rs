//! System calls, and the modules shared by all layers above.
//!
//! Sockets and system calls without a safe wrapper; the only unsafe code of the daemon:
//!
//! - [`socket`], [`sockets`], options of one socket, and all TCP sockets of the process;
//!   [`descriptors`], all its open files
//! - [`datagrams`], many received by one call
//! - [`memory`], shared with other processes; [`keeper`], [`process`], these processes;
//!   [`unix_names`], names of abstract sockets
//! - [`packet`], [`tun`], packet sockets and TUN devices; [`interface`], [`ethtool`], interfaces
//! - [`clock`], [`reactor`]; [`cgroup`], the memory that a process may have
//! - [`privileges`]: capabilities, files and system calls of each process of pepd
//!
//! On top of them:
//!
//! - [`leg`], sockets of flows and their options; [`held`], server legs of held SYNs;
//!   [`unanswered`], servers that do not answer
//! - [`congestion`], congestion controls of the kernel and of pepd
//! - [`family`], address families; [`marks`], marks of packets and sockets
//! - [`netlink_bytes`], messages of netlink; [`notices`], notifications of the kernel;
//!   [`places`], location of addresses; [`packet_log`], packets that rules copy to programs
//! - [`stats`], counters; [`site_counters`], those of one site
//! - [`gate`], whether new connections are accepted
//! - [`keys`], of tunnels: generation and files
//! - [`admin_socket`], the socket file of a running pepd; [`load`], reading a configuration
//! - [`log`], to standard error
//! - [`threads`], created before there is work for them
#![deny(unsafe_code)]

pub mod admin_socket;
pub mod cgroup;
#[expect(unsafe_code, reason = "system calls")]
pub mod clock;
pub mod congestion;
#[cfg(any(test, feature = "testing"))]
pub mod crash_point;
#[expect(unsafe_code, reason = "system calls")]
pub mod datagrams;
pub mod descriptors;
#[expect(unsafe_code, reason = "system calls")]
pub mod ethtool;
pub mod family;
pub mod gate;
pub mod held;
#[expect(unsafe_code, reason = "system calls")]
pub mod interface;
#[expect(unsafe_code, reason = "system calls")]
pub mod keeper;
pub mod keys;
pub mod leg;
pub mod load;
pub mod log;
pub mod marks;
#[expect(unsafe_code, reason = "system calls")]
pub mod memory;
pub mod netlink_bytes;
pub mod notices;
#[expect(unsafe_code, reason = "system calls")]
pub mod packet;
pub mod packet_log;
#[expect(unsafe_code, reason = "descriptors of another process")]
pub mod passing;
pub mod places;
pub mod privileges;
#[expect(unsafe_code, reason = "system calls")]
pub mod process;
#[expect(unsafe_code, reason = "system calls")]
pub mod reactor;
pub mod site_counters;
#[expect(unsafe_code, reason = "system calls")]
pub mod socket;
#[expect(unsafe_code, reason = "system calls")]
pub mod sockets;
pub mod stats;
pub mod threads;
#[expect(unsafe_code, reason = "system calls")]
pub mod tun;
pub mod unanswered;
pub mod unix_names;

use std::{fs, path::Path};

/// Returns the value of a sysctl, named by its path below `/proc/sys`; `None` if it is missing.
pub fn sysctl(path: &str) -> Option<String> {
    let value = fs::read_to_string(Path::new("/proc/sys").join(path)).ok()?;
    Some(value.trim().to_owned())
}

/// Widens a number of the C library to 64 bits; on 32-bit CPUs it has 32.
pub fn wide(number: impl Into<u64>) -> u64 {
    number.into()
}
