//! A server that runs a closure per connection.

use std::{
    fmt,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use socket2::SockRef;

/// A server that accepts connections and runs a closure for each on its own thread, until dropped.
pub struct Server {
    listener: TcpListener,
    accepted: Arc<AtomicU64>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Server {
    /// Starts serving. The closure gets each connection and its source address; its result or panic
    /// only ends that connection.
    ///
    /// # Panics
    /// At the limit of threads or descriptors.
    pub fn start(
        listener: TcpListener,
        handle: impl Fn(TcpStream, SocketAddr) + Send + Sync + 'static,
    ) -> Self {
        let accepting = listener.try_clone().expect("a descriptor is left");
        let accepted = Arc::new(AtomicU64::new(0));
        let (counted, handle) = (Arc::clone(&accepted), Arc::new(handle));
        let thread = thread::spawn(move || {
            // Ends when the listener is shut down.
            while let Ok((stream, peer)) = accepting.accept() {
                counted.fetch_add(1, Ordering::SeqCst);
                let handle = Arc::clone(&handle);
                thread::spawn(move || handle(stream, peer));
            }
        });
        Self {
            listener,
            accepted,
            thread: Some(thread),
        }
    }

    /// Returns the number of accepted connections.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::SeqCst)
    }

    /// Returns the listening address.
    ///
    /// # Panics
    /// Never, for a listener that was bound.
    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr().expect("a bound listener")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Wakes accept() with an error.
        let _ = SockRef::from(&self.listener).shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("listener", &self.listener)
            .field("accepted", &self.accepted())
            .finish_non_exhaustive()
    }
}
