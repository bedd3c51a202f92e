//! Growth of a link leg's receive buffer beyond `net.ipv4.tcp_rmem`.
//!
//! The kernel tunes a receive buffer to twice what the application takes in a round trip (dynamic
//! right-sizing), and stops at the third number of `tcp_rmem`: 6 MiB on most systems, of which half
//! is window. A link of 50 Mbit/s and 600 ms behind a modem with a deep queue holds more. From
//! there on pepd continues by the same rule, up to what the link needs.

use std::{io, os::fd::BorrowedFd};

use pep_core::{budget::Share, site::ReceiveBuffer};

use crate::leg::receive;

/// Bytes received between two looks at the socket: a look costs less than a thousandth of them.
const LOOK_EVERY: u64 = 1 << 20;

/// Receive buffer of one link leg.
#[derive(Debug)]
pub(super) struct ReceiveWindow {
    /// As the kernel counts it, which is twice what SO_RCVBUF takes; 0 where pepd leaves it alone.
    most: u64,
    until_look: u64,
    /// Bytes beyond the kernel's own limit, taken from `limits.memory`.
    extra: Share,
}

impl ReceiveWindow {
    pub(super) fn new(buffer: ReceiveBuffer, extra: Share) -> Self {
        Self {
            most: match buffer {
                ReceiveBuffer::Grown(bytes) => bytes.saturating_mul(2),
                ReceiveBuffer::System | ReceiveBuffer::Fixed(_) => 0,
            },
            until_look: LOOK_EVERY,
            extra,
        }
    }

    /// Grows the buffer where what arrives asks for it.
    pub(super) fn on_received(&mut self, fd: BorrowedFd<'_>, bytes: u64) {
        self.until_look = self.until_look.saturating_sub(bytes);
        if self.until_look > 0 || self.most == 0 {
            return;
        }
        self.until_look = LOOK_EVERY;
        if let Err(err) = self.look(fd) {
            tracing::debug!(error = %err, "receive buffer of a link leg cannot be grown");
            self.most = 0;
        }
    }

    fn look(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let limit = receive::autotuned_most();
        let Some(wanted) = receive::state(fd)?.wanted(limit, self.most) else {
            return Ok(());
        };
        let extra = wanted.saturating_sub(limit);
        if self
            .extra
            .try_grow(extra.saturating_sub(self.extra.bytes()))
        {
            receive::set_size(fd, wanted)?;
        }
        Ok(())
    }
}
