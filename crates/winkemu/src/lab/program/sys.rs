//! Socket calls without a safe wrapper.
#![expect(unsafe_code, reason = "neither socket2 nor nix knows these options")]

use std::{io, os::fd::AsRawFd as _};

use socket2::Socket;

/// Limits the send rate of a socket, in bytes of payload per second (SO_MAX_PACING_RATE).
pub(super) fn set_pacing(socket: &Socket, bytes_per_second: u64) -> io::Result<()> {
    // An unsigned long is as wide as an address.
    let value = usize::try_from(bytes_per_second).unwrap_or(usize::MAX) as libc::c_ulong;
    // SAFETY: the descriptor is open while the socket is borrowed, and the kernel reads as many
    // bytes as an unsigned long has from a value that outlives the call.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MAX_PACING_RATE,
            (&raw const value).cast(),
            size_of::<libc::c_ulong>() as libc::socklen_t,
        )
    };
    check(outcome)
}

/// Fills the buffer with the kernel's `struct tcp_info`, and returns the number of bytes written.
pub(super) fn tcp_info(socket: &Socket, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = buffer.len() as libc::socklen_t;
    // SAFETY: the descriptor is open while the socket is borrowed; the kernel writes at most
    // `length` bytes, which is the length of the buffer, and both outlive the call.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            buffer.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    check(outcome)?;
    Ok(length as usize)
}

fn check(outcome: libc::c_int) -> io::Result<()> {
    match outcome {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
