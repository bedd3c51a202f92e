//! Searches for sockets by clients of the admin port and socket.

use std::sync::Arc;

use tokio::{
    sync::Semaphore,
    task::{JoinError, spawn_blocking},
};

/// Searches at a time: each asks the kernel for all of pepd's sockets.
const AT_ONCE: usize = 2;

/// Turns of searches.
#[derive(Debug)]
pub(super) struct Searches(Arc<Semaphore>);

impl Default for Searches {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

impl Searches {
    /// Runs a search off the event loop, in its turn. A client that has gone gives up its turn, but
    /// not before the end of a search that runs.
    ///
    /// # Errors
    /// If the search panics.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        search: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        let turn = Arc::clone(&self.0).acquire_owned().await;
        let searched = spawn_blocking(move || {
            let found = search();
            drop(turn);
            found
        });
        searched.await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures_util::future::{FutureExt as _, join_all};

    use super::*;

    #[tokio::test]
    async fn clients_that_go_away_start_no_more_searches() {
        let searches = Searches::default();
        let (begun, begins) = mpsc::channel();
        let (end, ends) = mpsc::channel::<()>();
        let ends = Arc::new(parking_lot::Mutex::new(ends));
        let search = || {
            let (begun, ends) = (begun.clone(), Arc::clone(&ends));
            move || {
                begun.send(()).unwrap();
                let _ = ends.lock().recv();
            }
        };
        for _ in 0..100 {
            // Polled once, and dropped.
            assert!(searches.run(search()).now_or_never().is_none());
        }
        for _ in 0..AT_ONCE {
            begins.recv().unwrap();
        }
        assert!(begins.try_recv().is_err());
        // The next ones run once these have ended.
        drop(end);
        let later = join_all((0..10).map(|_| searches.run(search()))).await;
        assert!(later.iter().all(Result::is_ok));
        assert_eq!(begins.try_iter().count(), 10);
    }
}
