//! Threads that are made before there is work for them.

use std::{
    io,
    sync::mpsc::{Sender, channel},
    thread::{self, JoinHandle},
};

/// Beginning of the names of threads that carry flows.
pub const NAME: &str = "worker-";

/// Count of threads that carry flows: one per processor, up to what one link can keep busy.
pub fn count() -> usize {
    thread::available_parallelism()
        .map_or(1, usize::from)
        .min(16)
}

type Work = Box<dyn FnOnce() + Send>;

/// A thread that waits for its work. They are made before flows are taken over: where one cannot be had, flows are left
/// to whoever comes next rather than lost with the work that held them.
#[derive(Debug)]
pub struct IdleThread {
    thread: JoinHandle<()>,
    work: Sender<Work>,
}

impl IdleThread {
    /// Makes one, which ends when this is dropped.
    ///
    /// # Errors
    /// When there is no memory, or no thread, for it.
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

    /// Gives it its work.
    pub fn begin(self, work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
        // It waits for nothing else.
        let _ = self.work.send(Box::new(work));
        self.thread
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
        let (told, heard) = channel();
        let work = move || {
            let name = thread::current().name().map(ToOwned::to_owned);
            told.send(name).unwrap();
        };
        let thread = idle.begin(work);
        assert_eq!(heard.recv().unwrap().as_deref(), Some("busy"));
        thread.join().unwrap();
    }
}
