//! A connected leg in the event loop.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    task::{Context, Poll},
};

use pepd_sys::{leg, reactor};
use tokio::io::{Interest, unix::AsyncFd};

/// A leg whose readiness the event loop watches.
///
/// Attempts come first; readiness is waited for only after one would have blocked. The event loop
/// reports edges, and forgets one only in an attempt that blocked after it, so that
/// none is lost.
#[derive(Debug)]
pub struct LegIo(AsyncFd<Arc<OwnedFd>>);

impl LegIo {
    /// Closes the leg where it fails.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        reactor::register(Arc::new(fd), interest).map(Self)
    }

    /// The socket, out of the event loop; `None` while others look at it.
    pub(crate) fn into_fd(self) -> Option<OwnedFd> {
        Arc::into_inner(self.0.into_inner())
    }

    /// The socket, for those who only look at it.
    pub fn shared(&self) -> &Arc<OwnedFd> {
        self.0.get_ref()
    }

    /// The socket, for calls.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }

    /// Attempts a call whatever is known of readiness: what is not known yet may be so.
    pub fn attempt<T>(
        &self,
        interest: Interest,
        mut call: impl FnMut(BorrowedFd<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut attempted = false;
        let result = self.0.try_io(interest, |fd| {
            attempted = true;
            call(fd.as_fd())
        });
        if attempted { result } else { call(self.fd()) }
    }

    /// Ready when an attempt to receive may succeed.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll_read_ready(cx).map(drop)
    }

    /// Ready when an attempt to send may succeed.
    pub fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll_write_ready(cx).map(drop)
    }

    /// Ready with the error when the leg has broken; not to be mixed with a wait by
    /// [`poll_writable`](Self::poll_writable). It forgets that the leg is writable, which
    /// [`attempt`](Self::attempt) does not mind.
    ///
    /// A leg on which both ends have sent FIN is reported as hung up, too, but without an
    /// error: it is whole, cannot break any more, and may still have something to be read.
    pub fn poll_broken(&self, cx: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            let mut guard = match self.0.poll_write_ready(cx) {
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

    /// The leg's pending error.
    pub fn take_error(&self) -> Option<io::Error> {
        leg::so_error(self.fd()).unwrap_or_else(Some)
    }
}
