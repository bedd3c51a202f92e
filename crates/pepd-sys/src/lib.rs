//! The machine as pepd uses it: system calls, and what all layers above share.
//!
//! Sockets and system calls without a safe wrapper; the only unsafe code of the daemon:
//!
//! - [`socket`], [`sockets`], options of one, all of the machine's
//! - [`memory`], shared with other processes; [`keeper`], [`process`], these processes
//! - [`packet`], [`tun`], packets as a whole; [`interface`], [`ethtool`], interfaces
//! - [`clock`], [`reactor`]
//!
//! On top of them:
//!
//! - [`leg`], sockets of flows and their options; [`held`], server legs of held SYNs;
//!   [`unanswered`], servers that are silent
//! - [`congestion`], congestion controls of the kernel and our own
//! - [`family`], of addresses; [`marks`], by which packets and sockets are told apart
//! - [`notices`], news from the kernel
//! - [`stats`], counters; [`tally`], those of one site
//! - [`gate`], whether new connections are taken
//! - [`keys`], of tunnels: making them, files with them
//! - [`admin_socket`], the file by which a running pepd is asked; [`load`], reading a configuration
//! - [`log`], to standard error
//! - [`threads`], made before there is work for them
#![deny(unsafe_code)]

pub mod admin_socket;
#[expect(unsafe_code, reason = "system calls")]
pub mod clock;
pub mod congestion;
#[expect(unsafe_code, reason = "system calls")]
pub mod ethtool;
pub mod family;
#[cfg(any(test, feature = "testing"))]
pub mod fuse;
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
pub mod notices;
#[expect(unsafe_code, reason = "system calls")]
pub mod packet;
#[expect(unsafe_code, reason = "system calls")]
pub mod process;
#[expect(unsafe_code, reason = "system calls")]
pub mod reactor;
#[expect(unsafe_code, reason = "system calls")]
pub mod socket;
#[expect(unsafe_code, reason = "system calls")]
pub mod sockets;
pub mod stats;
pub mod tally;
pub mod threads;
#[expect(unsafe_code, reason = "system calls")]
pub mod tun;
pub mod unanswered;

use std::{fs, path::Path};

/// The value of a sysctl, named by its path below `/proc/sys`; `None` where there is none.
pub fn sysctl(path: &str) -> Option<String> {
    let value = fs::read_to_string(Path::new("/proc/sys").join(path)).ok()?;
    Some(value.trim().to_owned())
}

/// A number of the C library in 64 bits; on 32-bit CPUs it has 32.
pub fn wide(number: impl Into<u64>) -> u64 {
    number.into()
}
