//! Other processes.

use std::{
    io,
    os::fd::{FromRawFd as _, OwnedFd},
};

use nix::unistd::Pid;

/// A descriptor that is readable once the process has ended, closed on exec.
///
/// # Errors
/// `ESRCH` when there is no such process, `ENOSYS` before Linux 5.3.
pub fn pidfd_open(process: Pid) -> io::Result<OwnedFd> {
    // SAFETY: takes integers only.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_open, process.as_raw(), 0) };
    let fd = super::socket::check(result as libc::c_int)?;
    // SAFETY: the kernel has just returned this descriptor, which nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
