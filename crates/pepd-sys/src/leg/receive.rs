//! Receive buffers of legs beyond the limit of the kernel's autotuning.
//!
//! A window above `65535 << scale` cannot be advertised. The kernel derives the scale from
//! `net.ipv4.tcp_rmem` when the handshake begins: 8 MiB where the limit is 6 MiB. A larger buffer
//! before the handshake would raise the scale, but be advertised whole from the first segment on.

use std::{io, os::fd::BorrowedFd, sync::OnceLock};

use crate::socket;

/// The assumed autotuning limit where `net.ipv4.tcp_rmem` cannot be read.
const LIMIT: u64 = 6 << 20;

/// Returns the size in bytes to which the kernel's autotuning grows a receive buffer.
pub fn autotuned_most() -> u64 {
    static READ: OnceLock<u64> = OnceLock::new();
    *READ.get_or_init(|| {
        let text = crate::sysctl("net/ipv4/tcp_rmem").unwrap_or_default();
        let most = text
            .split_whitespace()
            .nth(2)
            .and_then(|most| most.parse().ok());
        most.unwrap_or(LIMIT)
    })
}

/// Sets the size in bytes as the kernel counts it, and unclamps the window.
///
/// # Errors
/// When the kernel refuses it.
pub fn set_size(fd: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    socket::set_receive_buffer(fd, bytes)?;
    socket::unclamp_window(fd)
}

/// Ends the kernel's tuning of a buffer that has `size`, and restrains the window to that of a
/// buffer of `as_of` bytes. Bytes that the sender was allowed before still fit.
///
/// # Errors
/// When the kernel refuses it.
pub fn restrain(fd: BorrowedFd<'_>, size: u64, as_of: u64) -> io::Result<()> {
    socket::set_receive_buffer(fd, size)?;
    // As the kernel does at first, which has no measure of the overhead per packet.
    socket::clamp_window(fd, as_of / 2)
}

/// Returns whether the kernel tunes the size of the buffer. Kernels that do not tell (before Linux
/// 5.14) are taken to do so.
pub fn is_tuned(fd: BorrowedFd<'_>) -> bool {
    !socket::is_receive_buffer_set(fd).unwrap_or(false)
}

/// Returns the size in bytes as the kernel counts it.
///
/// # Errors
/// When the option cannot be read.
pub fn size(fd: BorrowedFd<'_>) -> io::Result<u64> {
    socket::receive_buffer(fd)
}

/// State of a receive buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    size: u64,
    taken_in_a_round_trip: u64,
}

/// Reads the state of a receive buffer.
///
/// # Errors
/// When the options cannot be read.
pub fn state(fd: BorrowedFd<'_>) -> io::Result<State> {
    Ok(State {
        size: socket::receive_buffer(fd)?,
        taken_in_a_round_trip: socket::taken_in_a_round_trip(fd)?,
    })
}

impl State {
    /// Returns the size as the kernel counts it.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the size that the rate of the connection needs, by the kernel's rule (below).
    pub fn needed(&self) -> u64 {
        self.taken_in_a_round_trip.saturating_mul(4)
    }

    /// Returns the size that the buffer should have, if that is larger and the buffer has reached
    /// `limit`, where autotuning ends.
    ///
    /// The kernel's rule: a window of twice the bytes read in a round trip, so that the sender can
    /// double its own. The kernel's overhead per packet needs as much again.
    pub fn wanted(&self, limit: u64, most: u64) -> Option<u64> {
        let wanted = self.needed().min(most);
        (self.size >= limit && wanted > self.size).then_some(wanted)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{TcpListener, TcpStream},
        os::fd::AsFd as _,
    };

    use super::*;

    #[test]
    fn a_buffer_grows_beyond_the_kernels_limit_and_not_before_it_is_reached() {
        let state = |size, taken_in_a_round_trip| State {
            size,
            taken_in_a_round_trip,
        };
        let wanted = |size, taken| state(size, taken).wanted(6 << 20, 64 << 20);
        assert_eq!(
            wanted(1 << 20, 3 << 20),
            None,
            "autotuning covers this size"
        );
        assert_eq!(wanted(6 << 20, 1 << 20), None, "large enough");
        assert_eq!(wanted(6 << 20, 3 << 20), Some(12 << 20));
        assert_eq!(wanted(12 << 20, 40 << 20), Some(64 << 20), "the most");
        assert_eq!(wanted(64 << 20, 40 << 20), None);
    }

    #[test]
    fn a_buffer_of_a_connection_grows_and_carries_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        set_size(receiver.as_fd(), 16 << 20).unwrap();
        assert_eq!(socket::receive_buffer(receiver.as_fd()).unwrap(), 16 << 20);
        sender.write_all(&[7; 50_000]).unwrap();
        receiver.read_exact(&mut vec![0; 50_000]).unwrap();
        assert!(state(receiver.as_fd()).unwrap().taken_in_a_round_trip > 0);
    }
}
