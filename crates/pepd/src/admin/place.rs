//! Share of an operator's connection of the common limits: a place, and time.

use std::{future::pending, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::sleep,
};

/// Maximum number of concurrent connections of a listener. Beyond it, the oldest is closed that
/// waits for its client; until there is one, others wait.
pub(super) const CONNECTIONS_MAX: usize = 16;
/// Maximum number of concurrent streams of the status, at each listener.
pub const STREAMS_MAX: usize = 8;
/// Maximum number of concurrent traces, at each listener.
pub const TRACES_MAX: usize = 8;

/// Connection that lasts as long as its client wants.
#[derive(Debug, Clone, Copy)]
pub enum Lasting {
    /// Stream of the status.
    Stream,
    /// Trace of a flow or peer.
    Trace,
}

/// Places of one listener. Each has its own: any local user may take those of the TCP port, and the
/// socket must still serve its owner.
#[derive(Debug)]
pub(super) struct Places {
    connections: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    traces: Arc<Semaphore>,
}

impl Default for Places {
    fn default() -> Self {
        let places = |number| Arc::new(Semaphore::new(number));
        Self {
            connections: places(CONNECTIONS_MAX),
            streams: places(STREAMS_MAX),
            traces: places(TRACES_MAX),
        }
    }
}

impl Places {
    /// Takes a place, once one is free.
    pub(super) async fn take(self: &Arc<Self>) -> Place {
        let permit = Arc::clone(&self.connections).acquire_owned().await;
        Place(Arc::new(Taken {
            // Fails only for a closed semaphore, and nothing closes it.
            permit: Mutex::new(permit.ok()),
            left: Notify::new(),
            places: Arc::clone(self),
        }))
    }
}

/// Place of a connection, attached as an extension to each of its requests.
#[derive(Debug, Clone)]
pub struct Place(Arc<Taken>);

#[derive(Debug)]
struct Taken {
    permit: Mutex<Option<OwnedSemaphorePermit>>,
    left: Notify,
    places: Arc<Places>,
}

impl Place {
    /// Exchanges the place for one among those that last, and lifts the time limit. Returns `None`
    /// if the listener has none left; otherwise the caller holds the permit to the end.
    pub fn last(&self, lasting: Lasting) -> Option<OwnedSemaphorePermit> {
        let places = match lasting {
            Lasting::Stream => &self.0.places.streams,
            Lasting::Trace => &self.0.places.traces,
        };
        let permit = Arc::clone(places).try_acquire_owned().ok()?;
        self.leave();
        Some(permit)
    }

    /// Frees the place and lifts the time limit. The caller has to limit the number of such
    /// connections.
    pub fn leave(&self) {
        drop(self.0.permit.lock().take());
        self.0.left.notify_one();
    }

    /// Returns true once the place is free.
    pub(super) fn is_left(&self) -> bool {
        self.0.permit.lock().is_none()
    }

    /// Completes after this time, unless the place is left before.
    pub(super) async fn overstayed(&self, limit: Duration) {
        tokio::select! {
            biased;
            () = self.0.left.notified() => pending().await,
            () = sleep(limit) => {}
        }
    }
}
