//! Clients that take the time of the server: without a complete request, or without reading the
//! answer.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
};

use super::place::Place;

/// State of a connection.
#[derive(Debug)]
pub(super) struct Client {
    /// Place among the connections.
    pub(super) place: Place,
    /// True once the client has sent a request head.
    pub(super) has_asked: AtomicBool,
    /// True while the client does not read what was sent, so that no more can be sent.
    is_blocked: AtomicBool,
    /// True while the client does not send the rest of the request's body.
    owes_body: AtomicBool,
    /// Notified when another client needs the place.
    pub(super) shed: Notify,
    /// Notified when the connection begins to wait for its client; common to all.
    waiting: Arc<Notify>,
}

impl Client {
    /// Returns true if the connection occupies a place and waits for its client.
    fn waits(&self) -> bool {
        let waits = self.is_blocked.load(Relaxed)
            || self.owes_body.load(Relaxed)
            || !self.has_asked.load(Relaxed);
        waits && !self.place.is_left()
    }

    /// Stores in `flag` whether the connection waits for its client.
    fn note(&self, flag: &AtomicBool, waits: bool) {
        flag.store(waits, Relaxed);
        if waits {
            self.waiting.notify_one();
        }
    }
}

/// All connections, the oldest first. A slow client must not occupy the places of others.
#[derive(Debug, Default)]
pub(super) struct Clients {
    all: VecDeque<Weak<Client>>,
    waiting: Arc<Notify>,
}

impl Clients {
    /// Adds a connection.
    pub(super) fn add(&mut self, place: Place) -> Arc<Client> {
        self.all.retain(|client| client.strong_count() > 0);
        let client = Arc::new(Client {
            place,
            has_asked: AtomicBool::new(false),
            is_blocked: AtomicBool::new(false),
            owes_body: AtomicBool::new(false),
            shed: Notify::new(),
            waiting: Arc::clone(&self.waiting),
        });
        self.all.push_back(Arc::downgrade(&client));
        client
    }

    /// Closes the oldest connection that waits for its client, once any does.
    pub(super) async fn shed_oldest(&mut self) {
        let waits = |client: &Weak<Client>| client.upgrade().is_some_and(|client| client.waits());
        loop {
            let oldest = self.all.iter().position(waits);
            let oldest = oldest.and_then(|oldest| self.all.remove(oldest)?.upgrade());
            if let Some(client) = oldest {
                client.shed.notify_one();
                return;
            }
            self.waiting.notified().await;
        }
    }
}

/// A stream that records whether its client reads.
#[derive(Debug)]
pub(super) struct Watched<S> {
    stream: S,
    client: Arc<Client>,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S, client: Arc<Client>) -> Self {
        Self { stream, client }
    }

    fn note<T>(&self, written: Poll<T>) -> Poll<T> {
        let client = &self.client;
        client.note(&client.is_blocked, written.is_pending());
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A request's body that records whether its client sends it.
#[derive(Debug)]
pub(super) struct WatchedBody {
    body: Incoming,
    client: Arc<Client>,
}

impl WatchedBody {
    pub(super) fn new(body: Incoming, client: Arc<Client>) -> Self {
        Self { body, client }
    }
}

impl Body for WatchedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        let client = &self.client;
        client.note(&client.owes_body, frame.is_pending());
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
