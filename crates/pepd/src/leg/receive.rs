//! Receive buffers of legs that grow beyond the kernel's own limit.
//!
//! A window of more than `65535 << scale` cannot be advertised, and the scale is part of the
//! handshake. The kernel chooses it from the size that the buffer has at that time. So a leg whose
//! buffer may grow has its largest size until its SYN is sent, and the kernel's first size, with
//! autotuning, from then on:
//!
//! ```text
//!   socket         connect() or accept()         tcp_rmem[2] is reached
//!     | most, locked     | tcp_rmem[1], autotuned        | grown by pepd, locked
//! ```

use std::{io, os::fd::BorrowedFd, sync::OnceLock};

use pep_core::site::{Buffers, ReceiveBuffer};

use crate::{intercept::setup, sys::socket};

/// Sizes that the kernel gives a receive buffer where `net.ipv4.tcp_rmem` cannot be read.
const SIZES: [u64; 2] = [128 << 10, 6 << 20];

/// First and largest size that the kernel gives a receive buffer (`net.ipv4.tcp_rmem`).
fn sizes() -> [u64; 2] {
    static READ: OnceLock<[u64; 2]> = OnceLock::new();
    *READ.get_or_init(|| {
        let text = setup::sysctl("net/ipv4/tcp_rmem").unwrap_or_default();
        let numbers: Vec<u64> = text.split_whitespace().flat_map(str::parse).collect();
        match numbers[..] {
            [_, first, most] => [first, most],
            _ => SIZES,
        }
    })
}

/// Largest size in bytes to which the kernel's autotuning grows a receive buffer.
pub fn autotuned_most() -> u64 {
    sizes()[1]
}

/// Makes the coming handshake announce a window scale for the largest size.
///
/// Does nothing before Linux 5.14, which cannot give a buffer back to autotuning (SO_BUF_LOCK).
///
/// # Errors
/// When the kernel refuses the size.
pub(super) fn reserve(fd: BorrowedFd<'_>, buffers: Buffers) -> io::Result<()> {
    let ReceiveBuffer::Grown(most) = buffers.receive else {
        return Ok(());
    };
    if most.saturating_mul(2) > autotuned_most()
        && socket::lock_buffers(fd, buffers.locks()).is_ok()
    {
        set_size(fd, most.saturating_mul(2))?;
    }
    Ok(())
}

/// Gives a buffer whose handshake has begun back to the kernel's autotuning.
///
/// # Errors
/// When the kernel refuses it.
pub fn release(fd: BorrowedFd<'_>, buffers: Buffers) -> io::Result<()> {
    let ReceiveBuffer::Grown(most) = buffers.receive else {
        return Ok(());
    };
    if socket::receive_buffer(fd)? < most.saturating_mul(2) {
        return Ok(());
    }
    socket::set_receive_buffer(fd, sizes()[0])?;
    socket::lock_buffers(fd, buffers.locks())
}

/// Sets the size in bytes as the kernel counts it, and lets the window follow.
///
/// # Errors
/// When the kernel refuses it.
pub fn set_size(fd: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    socket::set_receive_buffer(fd, bytes)?;
    socket::unclamp_window(fd)
}

/// State of a receive buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    size: u64,
    taken_in_a_round_trip: u64,
}

/// Asks the kernel for the state of a receive buffer.
///
/// # Errors
/// When the socket cannot be asked.
pub fn state(fd: BorrowedFd<'_>) -> io::Result<State> {
    Ok(State {
        size: socket::receive_buffer(fd)?,
        taken_in_a_round_trip: socket::taken_in_a_round_trip(fd)?,
    })
}

impl State {
    /// Size that the buffer should have, where that is more than it has and autotuning, which ends
    /// at `limit`, cannot give it.
    ///
    /// The kernel's rule: a window of twice what is taken in a round trip, so that the sender may
    /// double its own; and as much again for what the kernel spends on each packet.
    pub fn wanted(&self, limit: u64, most: u64) -> Option<u64> {
        let wanted = self.taken_in_a_round_trip.saturating_mul(4).min(most);
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

    const BUFFERS: Buffers = Buffers {
        send: None,
        receive: ReceiveBuffer::Grown(64 << 20),
    };

    #[test]
    fn a_buffer_grows_beyond_the_kernels_limit_and_not_before_it_is_reached() {
        let state = |size, taken_in_a_round_trip| State {
            size,
            taken_in_a_round_trip,
        };
        let wanted = |size, taken| state(size, taken).wanted(6 << 20, 64 << 20);
        assert_eq!(wanted(1 << 20, 3 << 20), None, "the kernel still tunes it");
        assert_eq!(wanted(6 << 20, 1 << 20), None, "large enough");
        assert_eq!(wanted(6 << 20, 3 << 20), Some(12 << 20));
        assert_eq!(wanted(12 << 20, 40 << 20), Some(64 << 20), "the most");
        assert_eq!(wanted(64 << 20, 40 << 20), None);
    }

    #[test]
    fn a_reserved_buffer_is_released_to_autotuning_and_carries_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        reserve(listener.as_fd(), BUFFERS).unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        let reserved = socket::receive_buffer(receiver.as_fd()).unwrap();
        release(receiver.as_fd(), BUFFERS).unwrap();
        let released = socket::receive_buffer(receiver.as_fd()).unwrap();
        if reserved > autotuned_most() {
            assert_eq!(released, sizes()[0].max(2048));
        }
        sender.write_all(&[7; 50_000]).unwrap();
        let mut bytes = vec![0; 50_000];
        receiver.read_exact(&mut bytes).unwrap();
        set_size(receiver.as_fd(), 16 << 20).unwrap();
        assert_eq!(socket::receive_buffer(receiver.as_fd()).unwrap(), 16 << 20);
        assert!(state(receiver.as_fd()).unwrap().taken_in_a_round_trip > 0);
    }
}
