//! A leg, as flows in tunnels see it: a connection of the kernel's, or in tests one of a simulated kernel's.

use std::{
    fmt,
    future::Future,
    io::{self, ErrorKind},
    net::{IpAddr, Shutdown},
    os::fd::{AsRawFd as _, BorrowedFd},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use nix::sys::socket::{MsgFlags, recv, send};
use pep_core::{relay::Direction, ring::Ranges};
use pepd_relay::{
    arena::Slot,
    flow::{self, LegIo},
};
use pepd_sys::unanswered::Unanswered;
use socket2::SockRef;
use tokio::io::Interest;

/// The answer of a server to connect().
pub(super) type Answer<'a> = Pin<Box<dyn Future<Output = io::Result<()>> + 'a>>;

/// A connection to a host. Closed when it is dropped: by RST, unless it [was to be by FIN](Self::close_with_fin).
pub(super) trait Leg: fmt::Debug {
    /// Which of all connections of the kernel it is, as a successor of this process finds it (SO_COOKIE).
    ///
    /// # Errors
    /// When the kernel does not say.
    fn cookie(&self) -> io::Result<u64>;

    /// Ready with how the server has answered, once it has; at the latest after that `limit`.
    fn connected<'a>(
        &'a self,
        unanswered: &'a Unanswered,
        destination: IpAddr,
        limit: Duration,
    ) -> Answer<'a>;

    /// Receives into a flow's memory. 0 is the end of what the host sends.
    fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        slot: &mut Slot,
        direction: Direction,
        space: &Ranges,
    ) -> Poll<io::Result<u64>>;

    /// Sends from a flow's memory.
    fn poll_send(
        &self,
        cx: &mut Context<'_>,
        slot: &Slot,
        direction: Direction,
        data: &Ranges,
    ) -> Poll<io::Result<u64>>;

    /// Receives. 0 is the end of what the host sends.
    fn poll_read(&self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>>;

    /// Sends.
    fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;

    /// Ready with the error when it has broken; not to be mixed with waiting for room to send.
    fn poll_broken(&self, cx: &mut Context<'_>) -> Poll<io::Error>;

    /// Tells the host that nothing follows what was sent.
    ///
    /// # Errors
    /// As shutdown(2), with the reason why the connection has broken where that is why.
    fn finish(&self) -> io::Result<()>;

    /// Whether there are bytes that the host has not acknowledged but still may. `fin` is whether it was told the end: that
    /// counts like a byte.
    fn has_tail(&self, fin: bool) -> bool;

    /// From here on a close, by us or by the kernel, delivers what is left.
    fn close_with_fin(&self);
}

impl Leg for LegIo {
    fn cookie(&self) -> io::Result<u64> {
        SockRef::from(&self.fd()).cookie()
    }

    fn connected<'a>(
        &'a self,
        unanswered: &'a Unanswered,
        destination: IpAddr,
        limit: Duration,
    ) -> Answer<'a> {
        Box::pin(flow::connected(self, unanswered, destination, limit))
    }

    fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        slot: &mut Slot,
        direction: Direction,
        space: &Ranges,
    ) -> Poll<io::Result<u64>> {
        attempt(self, cx, Interest::READABLE, |fd| {
            slot.receive(fd, direction, space)
        })
    }

    fn poll_send(
        &self,
        cx: &mut Context<'_>,
        slot: &Slot,
        direction: Direction,
        data: &Ranges,
    ) -> Poll<io::Result<u64>> {
        attempt(self, cx, Interest::WRITABLE, |fd| {
            slot.send(fd, direction, data)
        })
    }

    fn poll_read(&self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        attempt(self, cx, Interest::READABLE, |fd| {
            Ok(recv(fd.as_raw_fd(), into, MsgFlags::MSG_DONTWAIT)?)
        })
    }

    fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        attempt(self, cx, Interest::WRITABLE, |fd| {
            Ok(send(fd.as_raw_fd(), bytes, flags)?)
        })
    }

    fn poll_broken(&self, cx: &mut Context<'_>) -> Poll<io::Error> {
        LegIo::poll_broken(self, cx)
    }

    fn finish(&self) -> io::Result<()> {
        // ENOTCONN: it was reset in the meantime, and the error is still pending.
        let shut = SockRef::from(&self.fd()).shutdown(Shutdown::Write);
        shut.map_err(|err| self.take_error().unwrap_or(err))
    }

    fn has_tail(&self, fin: bool) -> bool {
        LegIo::has_tail(self, fin)
    }

    fn close_with_fin(&self) {
        LegIo::close_with_fin(self);
    }
}

/// Attempts a call, and again whenever it may succeed; pending when it would block.
fn attempt<T>(
    leg: &LegIo,
    cx: &mut Context<'_>,
    interest: Interest,
    mut call: impl FnMut(BorrowedFd<'_>) -> io::Result<T>,
) -> Poll<io::Result<T>> {
    // Most turns are for something else than bytes from the leg. That a leg is writable may have been forgotten.
    let mut known = interest.is_writable();
    loop {
        if !std::mem::take(&mut known) {
            ready!(if interest.is_readable() {
                leg.poll_readable(cx)
            } else {
                leg.poll_writable(cx)
            });
        }
        match leg.attempt(interest, &mut call) {
            Err(err) if err.kind() == ErrorKind::WouldBlock => {}
            result => return Poll::Ready(result),
        }
    }
}
