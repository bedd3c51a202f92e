//! System calls without a safe wrapper.
#![expect(
    unsafe_code,
    reason = "pre_exec hooks, ethtool requests and pidfds need it"
)]

use std::{
    io, mem,
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
        unix::process::CommandExt as _,
    },
    process::Command,
    sync::Arc,
};

use nix::{
    sched::{CloneFlags, setns},
    sys::{prctl, signal::Signal},
    unistd::{getpid, getppid, setsid},
};

const SIOCETHTOOL: libc::Ioctl = 0x8946;
/// Commands of `linux/ethtool.h` for TSO, GSO and GRO.
const ETHTOOL_SET_SEGMENTATION: [u32; 3] = [0x1f, 0x24, 0x2c];

/// Session of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Session {
    /// New session led by the command.
    Own,
    /// Session of the process that spawns the command.
    Callers,
}

/// Makes a command join a namespace, choose its session, and die with the spawning thread.
pub fn before_exec(command: &mut Command, netns: Arc<OwnedFd>, session: Session) {
    let us = getpid();
    let hook = move || {
        setns(&*netns, CloneFlags::CLONE_NEWNET)?;
        if session == Session::Own {
            setsid()?;
        }
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        // The parent may have died before the line above; then no signal would come.
        if getppid() != us {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(())
    };
    // SAFETY: the hook runs between fork and exec and only makes system calls that are
    // async-signal-safe; it allocates nothing and takes no lock. The descriptor is open, since
    // the closure owns a reference to it.
    unsafe { command.pre_exec(hook) };
}

/// Opens a pidfd of a child that has not been waited for.
pub fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two integers and touches no memory of this process.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor, and no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

pub fn set_offloads(interface: &str, on: bool) -> io::Result<()> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)?;
    // SAFETY: ifreq is plain data for which all zeroes is valid.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    if interface.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    for command in ETHTOOL_SET_SEGMENTATION {
        let mut value = EthtoolValue {
            command,
            data: u32::from(on),
        };
        request.ifr_ifru.ifru_data = (&raw mut value).cast();
        // SAFETY: the request names its interface with a final zero and points at a value of the
        // layout that these commands read; both outlive the call.
        let outcome = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
        if outcome < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
