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
