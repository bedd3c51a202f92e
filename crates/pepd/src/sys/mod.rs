//! The only unsafe code of the daemon: thin wrappers of system calls that decide nothing.

pub mod clock;
pub mod ethtool;
pub mod interface;
pub mod keeper;
pub mod memory;
pub mod packet;
pub mod process;
pub mod reactor;
pub mod socket;
pub mod sockets;
pub mod tun;

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
