//! A leg as flows in tunnels see it: a kernel connection, or in tests one of a simulated kernel.

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
use pep_core::{
    parties::Party,
    relay::{Direction, Side},
    ring::Ranges,
};
use pepd_relay::{
    arena::Slot,
    flow::{self, FlowContext, LegIo},
};
use pepd_sys::{leg::SiteRuntime, unanswered::Unanswered};
use socket2::SockRef;
use tokio::io::Interest;

/// A server's answer to connect(2).
pub(super) type Answer<'a> = Pin<Box<dyn Future<Output = io::Result<()>> + 'a>>;

/// A connection to a host. Closed on drop, by RST unless [set to close by
/// FIN](Self::close_with_fin).
pub(super) trait Leg: fmt::Debug {
    /// Returns the kernel's unique number of the connection (SO_COOKIE), by which a successor
    /// process finds it.
    ///
    /// # Errors
    /// If the kernel does not return one.
    fn cookie(&self) -> io::Result<u64>;

    /// Ready with the server's answer, or after `limit`.
    fn connected<'a>(
        &'a self,
        unanswered: &'a Unanswered,
        destination: IpAddr,
        limit: Duration,
    ) -> Answer<'a>;

    /// Receives into a flow's memory. 0 is the end of the host's bytes.
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

    /// Receives. 0 is the end of the host's bytes.
    fn poll_read(&self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>>;

    /// Sends.
    fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;

    /// Ready with the error when the connection has failed. Not to be mixed with waiting for room
    /// to send.
    fn poll_broken(&self, cx: &mut Context<'_>) -> Poll<io::Error>;

    /// Sends a FIN.
    ///
    /// # Errors
    /// As shutdown(2), or with the reason for which the connection had failed.
    fn finish(&self) -> io::Result<()>;

    /// Returns whether there are bytes that the host has not acknowledged but still may. `fin`
    /// tells whether a FIN was sent, which counts as a byte.
    fn has_tail(&self, fin: bool) -> bool;

    /// Bounds the kernel's receive buffer, as the leg on this side of a flow of the party.
    fn bound_receive(&mut self, _: &FlowContext, _: &SiteRuntime, _: Side, _: Party) {}

    /// Gives back what the kernel's receive buffer has grown by, as the flow is quiet.
    fn on_quiet(&self) {}

    /// Makes a later close, by pepd or by the kernel, deliver the remaining bytes.
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
        let received = ready!(attempt(self, cx, Interest::READABLE, |fd| {
            slot.receive(fd, direction, space)
        }))?;
        self.on_received(received);
        Poll::Ready(Ok(received))
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
        let received = ready!(attempt(self, cx, Interest::READABLE, |fd| {
            Ok(recv(fd.as_raw_fd(), into, MsgFlags::MSG_DONTWAIT)?)
        }))?;
        self.on_received(received as u64);
        Poll::Ready(Ok(received))
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
        // ENOTCONN: the connection was reset in the meantime, and the error is still pending.
        let shut = SockRef::from(&self.fd()).shutdown(Shutdown::Write);
        shut.map_err(|err| self.take_error().unwrap_or(err))
    }

    fn has_tail(&self, fin: bool) -> bool {
        LegIo::has_tail(self, fin)
    }

    fn bound_receive(
        &mut self,
        context: &FlowContext,
        site: &SiteRuntime,
        side: Side,
        party: Party,
    ) {
        LegIo::bound_receive(self, context, site, side, party);
    }

    fn on_quiet(&self) {
        LegIo::on_quiet(self);
    }

    fn close_with_fin(&self) {
        LegIo::close_with_fin(self);
    }
}

/// Attempts a call, and again whenever it may succeed. Pending when it would block.
fn attempt<T>(
    leg: &LegIo,
    cx: &mut Context<'_>,
    interest: Interest,
    mut call: impl FnMut(BorrowedFd<'_>) -> io::Result<T>,
) -> Poll<io::Result<T>> {
    // Most wakeups are not for bytes from the leg. The runtime may have forgotten that a leg is
    // writable.
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
