//! What a connection with an operator takes of what there is for all of them: a place, and time.

use std::{future::pending, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit},
    time::sleep,
};

/// The place of a connection, which each of its requests has as an extension.
#[derive(Debug, Clone)]
pub struct Place(Arc<Taken>);

#[derive(Debug)]
struct Taken {
    permit: Mutex<Option<OwnedSemaphorePermit>>,
    left: Notify,
}

impl Place {
    /// Of a connection that was let in by this.
    pub(super) fn new(permit: OwnedSemaphorePermit) -> Self {
        Self(Arc::new(Taken {
            permit: Mutex::new(Some(permit)),
            left: Notify::new(),
        }))
    }

    /// The place is for others from now on, and the connection may last: whoever calls this has to bound how many there are.
    pub fn leave(&self) {
        drop(self.0.permit.lock().take());
        self.0.left.notify_one();
    }

    /// Ends after this time, if the place is not left before.
    pub(super) async fn overstayed(&self, limit: Duration) {
        tokio::select! {
            biased;
            () = self.0.left.notified() => pending().await,
            () = sleep(limit) => {}
        }
    }
}
