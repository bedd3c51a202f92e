//! Connected leg in the event loop.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    task::{Context, Poll},
};

use parking_lot::Mutex;
use pep_core::{parties::Party, relay::Side};
use pepd_sys::{
    leg::{self, SiteRuntime},
    reactor,
};
use tokio::io::{Interest, unix::AsyncFd};

use super::{FlowContext, receive_bound::ReceiveBound};

/// Leg whose readiness the event loop watches.
///
/// Attempts come first: a flow waits for readiness only after an attempt would have blocked. The
/// event loop reports edges, and clears one only in an attempt that blocked after it, so that none
/// is lost.
#[derive(Debug)]
pub struct LegIo {
    fd: AsyncFd<Arc<OwnedFd>>,
    /// Bound of the receive buffer, if it has one.
    receive: Option<Mutex<ReceiveBound>>,
}

impl LegIo {
    /// Registers a leg; closes it on failure.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        let fd = reactor::register(Arc::new(fd), interest)?;
        Ok(Self { fd, receive: None })
    }

    /// Bounds the receive buffer, as the leg on this side of a flow of the party.
    pub fn bound_receive(
        &mut self,
        context: &FlowContext,
        site: &SiteRuntime,
        side: Side,
        party: Party,
    ) {
        let options = match side {
            Side::Client => &site.client,
            Side::Server => &site.server,
        };
        let memory = context.budget.limit();
        let part = context.admission.receive_part(party, memory);
        self.receive = ReceiveBound::new(self.fd(), options.buffers.receive, part).map(Mutex::new);
    }

    /// Adjusts the receive buffer after bytes were received.
    pub fn on_received(&self, bytes: u64) {
        if let Some(receive) = &self.receive {
            receive.lock().on_received(self.fd(), bytes);
        }
    }

    /// Gives back what the receive buffer has grown by, as the flow is quiet.
    pub fn on_quiet(&self) {
        if let Some(receive) = &self.receive {
            receive.lock().on_quiet(self.fd());
        }
    }

    /// Returns the socket, removed from the event loop; `None` while other owners exist.
    pub(crate) fn into_fd(self) -> Option<OwnedFd> {
        Arc::into_inner(self.fd.into_inner())
    }

    /// Returns the shared socket, for read-only inspection.
    pub fn shared(&self) -> &Arc<OwnedFd> {
        self.fd.get_ref()
    }

    /// Returns the socket for system calls.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.get_ref().as_fd()
    }

    /// Attempts a call regardless of the known readiness, which may be out of date.
    pub fn attempt<T>(
        &self,
        interest: Interest,
        mut call: impl FnMut(BorrowedFd<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut attempted = false;
        let result = self.fd.try_io(interest, |fd| {
            attempted = true;
            call(fd.as_fd())
        });
        if attempted { result } else { call(self.fd()) }
    }

    /// Returns ready when an attempt to receive may succeed.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.fd.poll_read_ready(cx).map(drop)
    }

    /// Returns ready when an attempt to send may succeed.
    pub fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.fd.poll_write_ready(cx).map(drop)
    }

    /// Returns ready with the error when the leg has failed. Do not combine it with
    /// [`poll_writable`](Self::poll_writable): it clears the writable state, which
    /// [`attempt`](Self::attempt) ignores.
    ///
    /// A leg on which both ends have sent FIN is also reported as hung up, but without an error: it
    /// cannot fail any more, and may still have unread data.
    pub fn poll_broken(&self, cx: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            let mut guard = match self.fd.poll_write_ready(cx) {
                Poll::Ready(Ok(guard)) => guard,
                Poll::Ready(Err(err)) => return Poll::Ready(err),
                Poll::Pending => return Poll::Pending,
            };
            if guard.ready().is_write_closed() {
                return self.take_error().map_or(Poll::Pending, Poll::Ready);
            }
            guard.clear_ready();
        }
    }

    /// Takes the leg's pending error.
    pub fn take_error(&self) -> Option<io::Error> {
        leg::so_error(self.fd()).unwrap_or_else(Some)
    }
}
