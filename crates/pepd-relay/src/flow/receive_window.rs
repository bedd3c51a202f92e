//! Growth of a link leg's receive buffer beyond `net.ipv4.tcp_rmem`.
//!
//! The kernel tunes a receive buffer to twice the bytes the application reads in a round trip
//! (dynamic right-sizing). It stops at the third number of `tcp_rmem`: 6 MiB on most systems, of
//! which half is window. A link of 50 Mbit/s and 600 ms behind a modem with a deep queue holds
//! more. From there on pepd applies the same rule, up to the link's need.

use std::{io, os::fd::BorrowedFd};

use pep_core::{budget::Share, site::ReceiveBuffer};
use pepd_sys::leg::receive;

/// Bytes received between two looks at the socket: a look costs less than a thousandth of them.
const LOOK_EVERY: u64 = 1 << 20;

/// Receive buffer of one link leg.
#[derive(Debug)]
pub(super) struct ReceiveWindow {
    /// Maximum as the kernel counts it, twice the value of SO_RCVBUF; 0 where pepd leaves it alone.
    most: u64,
    until_look: u64,
    /// Bytes beyond the kernel's own limit, taken from `limits.memory`.
    extra: Share,
}

impl ReceiveWindow {
    /// Creates the state of a new connection.
    pub(super) fn new(buffer: ReceiveBuffer, extra: Share) -> Self {
        let most = match buffer {
            ReceiveBuffer::Grown(bytes) => bytes.saturating_mul(2),
            ReceiveBuffer::System | ReceiveBuffer::Fixed(_) => 0,
        };
        Self {
            most,
            until_look: LOOK_EVERY,
            extra,
        }
    }

    /// Accounts for the growth of a buffer that was taken over.
    pub(super) fn take_over(&mut self, fd: BorrowedFd<'_>) {
        if self.most > 0 {
            let size = receive::size(fd).unwrap_or(0);
            self.extra
                .grow(size.saturating_sub(receive::autotuned_most()));
        }
    }

    /// Shrinks a grown buffer to the kernel's limit, since the flow is quiet.
    pub(super) fn on_quiet(&mut self, fd: BorrowedFd<'_>) {
        let bytes = self.extra.bytes();
        if bytes == 0 || receive::set_size(fd, receive::autotuned_most()).is_err() {
            return;
        }
        self.extra.give_back(bytes);
    }

    /// Grows the buffer if the received rate needs it.
    pub(super) fn on_received(&mut self, fd: BorrowedFd<'_>, bytes: u64) {
        self.until_look = self.until_look.saturating_sub(bytes);
        if self.until_look > 0 || self.most == 0 {
            return;
        }
        self.until_look = LOOK_EVERY;
        if let Err(err) = self.read_counters(fd) {
            tracing::debug!(error = %err, "cannot grow the receive buffer of a link leg");
            self.most = 0;
        }
    }

    fn read_counters(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let limit = receive::autotuned_most();
        let Some(wanted) = receive::state(fd)?.wanted(limit, self.most) else {
            return Ok(());
        };
        let extra = wanted
            .saturating_sub(limit)
            .saturating_sub(self.extra.bytes());
        if self.extra.try_grow_in_plenty(extra) {
            receive::set_size(fd, wanted).inspect_err(|_| self.extra.give_back(extra))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{TcpListener, TcpStream},
        os::fd::AsFd as _,
        sync::Arc,
    };

    use pep_core::budget::MemoryBudget;

    use super::*;

    #[test]
    fn what_a_buffer_has_grown_by_is_counted_and_given_back_when_quiet() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (receiver, _) = listener.accept().unwrap();
        let (fd, limit) = (receiver.as_fd(), receive::autotuned_most());
        let budget = Arc::new(MemoryBudget::new(1 << 30));
        let window = |most| ReceiveWindow::new(ReceiveBuffer::Grown(most), Share::none(&budget));
        let mut small = window(limit);
        small.take_over(fd);
        assert_eq!(budget.taken(), 0, "budget of a buffer that has not grown");
        drop(small);
        receive::set_size(fd, limit + (4 << 20)).unwrap();
        let mut taken_over = window(2 * limit);
        taken_over.take_over(fd);
        assert_eq!(budget.taken(), 4 << 20);
        taken_over.on_quiet(fd);
        assert_eq!(budget.taken(), 0);
        assert_eq!(receive::size(fd).unwrap(), limit);
    }
}
