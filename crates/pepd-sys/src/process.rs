//! Other processes.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
};

use nix::unistd::Pid;

/// Returns a descriptor that is readable once the process has ended, closed on exec.
///
/// # Errors
/// `ESRCH` when there is no such process, `ENOSYS` before Linux 5.3.
pub fn pidfd_open(process: Pid) -> io::Result<OwnedFd> {
    // SAFETY: takes integers only.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_open, process.as_raw(), 0) };
    let fd = super::socket::check(result as libc::c_int)?;
    // SAFETY: the kernel has just returned this descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Duplicates a descriptor of another process, for the same open file, closed on exec.
///
/// # Errors
/// `EBADF` when the process has none of that number, `EPERM` when access is denied (ptrace(2)).
pub fn pidfd_getfd(process: BorrowedFd<'_>, number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: takes integers only.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) };
    let fd = super::socket::check(result as libc::c_int)?;
    // SAFETY: the kernel has just returned this descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Kills the process of a pidfd, even if its number now belongs to another.
///
/// # Errors
/// `ESRCH` when it has ended already.
pub fn pidfd_kill(process: BorrowedFd<'_>) -> io::Result<()> {
    let none = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: takes integers, and no siginfo.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            process.as_raw_fd(),
            libc::SIGKILL,
            none,
            0,
        )
    };
    super::socket::check(result as libc::c_int).map(drop)
}
