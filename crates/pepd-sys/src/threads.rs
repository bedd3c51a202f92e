//! Threads that are created before there is work for them.

use std::{
    io,
    sync::mpsc::{Sender, channel},
    thread::{self, JoinHandle},
};

use tokio::runtime::{Builder, Runtime};

/// The name prefix of threads that carry flows.
pub const NAME: &str = "worker-";

/// Returns the count of threads that carry flows: one per CPU, up to the number that one link can
/// keep busy.
pub fn count() -> usize {
    thread::available_parallelism()
        .map_or(1, usize::from)
        .min(16)
}

type Work = Box<dyn FnOnce() + Send>;

/// A thread that waits for its work. Threads are created before flows are taken over: if that
/// fails, a later process can still take the flows, instead of losing them with their work.
#[derive(Debug)]
pub struct IdleThread {
    thread: JoinHandle<()>,
    work: Sender<Work>,
}

impl IdleThread {
    /// Creates a thread, which ends when this value is dropped.
    ///
    /// # Errors
    /// When memory, or the limit of threads, is exhausted.
    pub fn new(name: String) -> io::Result<Self> {
        let (work, given) = channel::<Work>();
        let run = move || {
            if let Ok(work) = given.recv() {
                work();
            }
        };
        let thread = thread::Builder::new().name(name).spawn(run)?;
        Ok(Self { thread, work })
    }

    /// Starts the work.
    pub fn begin(self, work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
        // The thread is idle until its only message arrives.
        let _ = self.work.send(Box::new(work));
        self.thread
    }
}

/// An [`IdleThread`] with its event loop, which also needs descriptors and memory.
#[derive(Debug)]
pub struct IdleLoop {
    thread: IdleThread,
    events: Events,
}

/// An event loop that is dropped within another one if the start fails.
#[derive(Debug)]
struct Events(Option<Runtime>);

impl Drop for Events {
    fn drop(&mut self) {
        // Dropped as usual, it would wait for its threads, and tokio forbids that here.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl IdleLoop {
    /// Creates an event loop and its thread, which ends when this value is dropped.
    ///
    /// # Errors
    /// When memory, descriptors, or the limit of threads, are exhausted.
    pub fn new(name: String) -> io::Result<Self> {
        let events = Builder::new_current_thread().enable_all().build()?;
        Ok(Self {
            events: Events(Some(events)),
            thread: IdleThread::new(name)?,
        })
    }

    /// Starts the work with the event loop.
    pub fn begin(self, work: impl FnOnce(Runtime) + Send + 'static) -> JoinHandle<()> {
        let Self { thread, mut events } = self;
        let events = events.0.take().expect("taken here only");
        thread.begin(move || work(events))
    }

    /// Returns the event loop, such as to register sockets.
    ///
    /// # Panics
    /// Never: the event loop is there until the work begins.
    pub fn events(&self) -> &Runtime {
        self.events.0.as_ref().expect("taken by `begin` only")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_gets_no_work_ends_and_keeps_nothing() {
        let idle = IdleThread::new("idle".to_owned()).unwrap();
        drop(idle.work);
        idle.thread.join().unwrap();
        let idle = IdleThread::new("busy".to_owned()).unwrap();
        let (sender, heard) = channel();
        let work = move || {
            let name = thread::current().name().map(ToOwned::to_owned);
            sender.send(name).unwrap();
        };
        let thread = idle.begin(work);
        assert_eq!(heard.recv().unwrap().as_deref(), Some("busy"));
        thread.join().unwrap();
    }
}
