//! A link between two TUN interfaces, run on a thread of its own.
//!
//! The thread reads what the kernel sends into either interface, hands it to the pure
//! [`Engine`](crate::link::Engine) with the time, and writes what comes out into the other one.
//! It waits by `ppoll` with nanoseconds and the least timer slack, and awake for the last 60 us
//! before a deadline as long as that takes no more than a twentieth of the time; under
//! [`Priority::Realtime`] always, under SCHED_FIFO, and on processors that do not sleep.
//!
//! ```no_run
//! use winkemu::{link::LinkOptions, netns::Netns, shell::{LinkHandle, LinkSpec, MTU, Tun}};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (a, b) = (Netns::new()?, Netns::new()?);
//! let options: LinkOptions = "rate=10mbit,delay=264ms".parse()?;
//! let spec = LinkSpec::new(
//!     Tun::create(&a, "sat0", &["10.0.0.1/24".parse()?], MTU)?,
//!     Tun::create(&b, "sat0", &["10.0.0.2/24".parse()?], MTU)?,
//!     options.resolve_without_files()?,
//!     1,
//! );
//! let link = LinkHandle::spawn(spec)?;
//! // ... traffic ...
//! let report = link.stop();
//! assert!(report.accuracy.counts, "{:?}", report.accuracy.reason);
//! # Ok(())
//! # }
//! ```

mod clock;
mod lateness;
mod pump;
mod punctual;
mod record;
mod report;
mod spin;
mod sys;
mod tun;

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Instant,
};

use nix::sys::eventfd::{EfdFlags, EventFd};

pub use lateness::{AccuracyLimit, Bin, LatenessReport, STRAYS, Verdict};
pub use punctual::Punctual;
pub use record::{RecordError, read_recording};
pub use report::{DirectionReport, LinkReport, Realtime};
pub use tun::{EndSpec, Tun, TunError};

use crate::link::{Decision, LinkConfig};

/// The usual MTU of a link, in bytes.
pub const MTU: u32 = 1500;

/// Why a link could not be started.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The system's limit of threads or descriptors.
    #[error("cannot start the link's thread")]
    Thread(#[source] io::Error),
    /// The recording to write.
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// What is done for the thread of a link to be on time. Where something is not permitted, it runs
/// without.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// That of any other thread.
    #[default]
    Ordinary,
    /// Before all ordinary threads (SCHED_FIFO), never awake before a deadline: for many links at once, which
    /// would otherwise wait at the cost of the others and of the programs between them.
    Preferred,
    /// Before all ordinary threads, with locked memory, on processors that wait awake; and awake for
    /// the last 60 us before each deadline, however many there are. The report says what was
    /// permitted.
    Realtime,
}

/// A link to be started.
#[derive(Debug)]
pub struct LinkSpec {
    /// One end.
    pub a: Tun,
    /// The other.
    pub b: Tun,
    /// What lies between them.
    pub config: LinkConfig,
    /// The seed of every draw.
    pub seed: u64,
    /// Before what else its thread runs.
    pub priority: Priority,
    /// Where to write each packet's decision.
    pub record: Option<PathBuf>,
    /// Decisions to take again.
    pub replay: Vec<Decision>,
    /// When the run is too inexact to count.
    pub limit: AccuracyLimit,
}

impl LinkSpec {
    /// A link without recording, at ordinary priority.
    pub fn new(a: Tun, b: Tun, config: LinkConfig, seed: u64) -> Self {
        Self {
            a,
            b,
            config,
            seed,
            priority: Priority::Ordinary,
            record: None,
            replay: Vec::new(),
            limit: AccuracyLimit::default(),
        }
    }
}

/// A running link. Dropping it stops the link.
#[derive(Debug)]
pub struct LinkHandle {
    stop: Arc<Stop>,
    thread: Option<thread::JoinHandle<LinkReport>>,
    began: Instant,
}

/// Tells the thread to stop, and wakes it.
#[derive(Debug)]
struct Stop {
    asked: AtomicBool,
    wake: EventFd,
}

impl Stop {
    fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Self {
            asked: AtomicBool::new(false),
            wake: EventFd::from_flags(flags)?,
        })
    }

    fn ask(&self) {
        self.asked.store(true, Ordering::Release);
        // It fails only when the counter is full, and then the thread wakes all the same.
        let _ = self.wake.write(1);
    }

    fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }
}

impl LinkHandle {
    /// Starts a link. Its clock starts here.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn spawn(spec: LinkSpec) -> Result<Self, LinkError> {
        let stop = Arc::new(Stop::new().map_err(LinkError::Thread)?);
        let mut pump = pump::Pump::new(spec, Arc::clone(&stop))?;
        let began = pump.began();
        let thread = thread::Builder::new().name("link".to_owned());
        let thread = thread.spawn(move || pump.run());
        let thread = thread.map_err(LinkError::Thread)?;
        let thread = Some(thread);
        Ok(Self {
            stop,
            thread,
            began,
        })
    }

    /// The instant at which its time is 0.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// Whether the link ended by itself; [`Self::stop`] says why.
    pub fn has_ended(&self) -> bool {
        self.thread
            .as_ref()
            .is_none_or(thread::JoinHandle::is_finished)
    }

    /// Stops the link, and says what it did. Packets still inside are counted as held.
    ///
    /// # Panics
    /// When the link's thread panicked.
    pub fn stop(mut self) -> LinkReport {
        self.join().expect("joined once only")
    }

    fn join(&mut self) -> Option<LinkReport> {
        self.stop.ask();
        let thread = self.thread.take()?;
        Some(
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        )
    }
}

impl Drop for LinkHandle {
    fn drop(&mut self) {
        self.stop.ask();
        if let Some(thread) = self.thread.take() {
            // A panic has been reported on the thread's own stack.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
