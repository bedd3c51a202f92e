//! Socket calls that neither socket2 nor nix wrap.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use socket2::{SockAddr, SockAddrStorage};

/// `TCP_RTO_MAX_MS` (Linux 6.15, `include/uapi/linux/tcp.h`); libc has no name for it yet.
pub const TCP_RTO_MAX_MS: libc::c_int = 44;
/// `SO_MAX_PACING_RATE` takes an unsigned long: bytes per second.
pub use libc::SO_MAX_PACING_RATE;

/// Sets an option whose value is an `int`.
pub fn set_int(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    set(fd, level, name, &value)
}

/// Sets an option whose value is an `unsigned long`.
pub fn set_ulong(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_ulong,
) -> io::Result<()> {
    set(fd, level, name, &value)
}

fn set<T: Copy>(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` points to `len` readable bytes for the whole call, and the kernel
    // keeps no reference to them.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const *value).cast(), len) };
    check(result).map(drop)
}

/// Takes a completed connection from a listener: non-blocking, closed on exec.
///
/// # Errors
/// As accept4(2); `WouldBlock` when there is none.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<(OwnedFd, SocketAddr)> {
    let mut storage = SockAddrStorage::zeroed();
    let mut len = storage.size_of();
    // SAFETY: `storage` is as large as `len` says and lives through the call; the kernel
    // writes an address into it and its length into `len`.
    let result = unsafe {
        libc::accept4(
            listener.as_raw_fd(),
            (&raw mut storage).cast(),
            &raw mut len,
            libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
        )
    };
    let fd = check(result)?;
    // SAFETY: accept4 returned it just now, so it is open and nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the kernel initialised `len` bytes of `storage` as a socket address.
    let address = unsafe { SockAddr::new(storage, len) };
    let peer = address
        .as_socket()
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok((fd, peer))
}

/// The headers of the SYN that opened an accepted connection, where its listener had
/// `TCP_SAVE_SYN`: IP header first. Empty when there are none (they can be read once).
pub fn saved_syn<'a>(fd: BorrowedFd<'_>, buffer: &'a mut [u8; 256]) -> io::Result<&'a [u8]> {
    let mut len = buffer.len() as libc::socklen_t;
    // SAFETY: `buffer` has `len` writable bytes and lives through the call.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_SAVED_SYN,
            buffer.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    check(result)?;
    Ok(&buffer[..len as usize])
}

/// Bytes given to a TCP socket and not yet acknowledged by its peer (`SIOCOUTQ`); a FIN counts
/// as one.
pub fn unacknowledged(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQ (TIOCOUTQ) writes one int, which `bytes` is.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    check(result)?;
    Ok(u64::try_from(bytes).unwrap_or(0))
}

/// Whether a TCP socket is in state CLOSE: reset, timed out, or closed by both and acknowledged.
pub fn is_closed(fd: BorrowedFd<'_>) -> io::Result<bool> {
    /// `TCP_CLOSE` of `include/net/tcp_states.h`.
    const CLOSE: u8 = 7;
    Ok(state(fd)? == CLOSE)
}

/// Whether a TCP socket is in state ESTABLISHED.
pub fn is_established(fd: BorrowedFd<'_>) -> io::Result<bool> {
    /// `TCP_ESTABLISHED` of `include/net/tcp_states.h`.
    const ESTABLISHED: u8 = 1;
    Ok(state(fd)? == ESTABLISHED)
}

/// The state of a TCP socket, a number of `include/net/tcp_states.h`.
fn state(fd: BorrowedFd<'_>) -> io::Result<u8> {
    // The kernel fills as much of the structure as fits; the state comes first.
    let mut state: u8 = 0;
    let mut len: libc::socklen_t = 1;
    // SAFETY: `state` has the `len` writable bytes, and both live through the call.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut state).cast(),
            &raw mut len,
        )
    };
    check(result)?;
    Ok(state)
}

/// Turns the -1 of a system call into `errno`.
pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}
