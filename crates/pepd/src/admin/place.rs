//! Share of an operator's connection of the common limits: a place, and time.

use std::{future::pending, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit},
    time::sleep,
};

/// Place of a connection, attached as an extension to each of its requests.
#[derive(Debug, Clone)]
pub struct Place(Arc<Taken>);

#[derive(Debug)]
struct Taken {
    permit: Mutex<Option<OwnedSemaphorePermit>>,
    left: Notify,
}

impl Place {
    /// Returns the place of a connection that holds this permit.
    pub(super) fn new(permit: OwnedSemaphorePermit) -> Self {
        Self(Arc::new(Taken {
            permit: Mutex::new(Some(permit)),
            left: Notify::new(),
        }))
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
