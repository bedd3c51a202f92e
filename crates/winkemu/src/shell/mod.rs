//! Shell that runs a link between two TUN interfaces on a thread of its own.
//!
//! The thread reads packets that the kernel sends into either interface, and hands them with the
//! time to the pure [`Engine`](crate::link::Engine). It writes the packets that come out into the
//! other interface. It waits by `ppoll` with nanoseconds and minimum timer slack. For the last 60
//! us before a deadline it spins, as long as spinning takes no more than a twentieth of the time.
//! Under [`Priority::Realtime`] it always spins, under SCHED_FIFO, on CPUs kept awake.
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

/// Default MTU of a link, in bytes.
pub const MTU: u32 = 1500;

/// Failure to start a link.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The system's limit of threads or descriptors is reached.
    #[error("cannot start the thread of the link")]
    Thread(#[source] io::Error),
    /// The recording cannot be written.
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// Effort of a link's thread to be on time. The thread runs without anything that is not permitted.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// Ordinary scheduling.
    #[default]
    Ordinary,
    /// SCHED_FIFO, without spinning: for many links at once, which would otherwise spin at the cost
    /// of each other and of the programs between them.
    Preferred,
    /// SCHED_FIFO, locked memory, CPUs kept awake, and spinning for the last 60 us before each
    /// deadline. The report lists what was permitted.
    Realtime,
}

/// Specification of a link to start.
#[derive(Debug)]
pub struct LinkSpec {
    /// Interface at end A.
    pub a: Tun,
    /// Interface at end B.
    pub b: Tun,
    /// Configuration of the link.
    pub config: LinkConfig,
    /// Seed of every draw.
    pub seed: u64,
    /// Priority of the link's thread.
    pub priority: Priority,
    /// File for the decision on each packet.
    pub record: Option<PathBuf>,
    /// Recorded decisions to replay.
    pub replay: Vec<Decision>,
    /// Accuracy limits of the run.
    pub limit: AccuracyLimit,
}

impl LinkSpec {
    /// Specification of a link without recording, at ordinary priority.
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

/// Running link, stopped on drop.
#[derive(Debug)]
pub struct LinkHandle {
    stop: Arc<Stop>,
    thread: Option<thread::JoinHandle<LinkReport>>,
    began: Instant,
}

/// Stop request that also wakes the thread.
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
        // The write fails only when the counter is full; in that case the thread wakes anyway.
        let _ = self.wake.write(1);
    }

    fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }
}

impl LinkHandle {
    /// Starts a link and its clock.
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

    /// Instant at which the link's time is 0.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// Reports whether the link ended on its own; [`Self::stop`] returns the reason.
    pub fn has_ended(&self) -> bool {
        self.thread
            .as_ref()
            .is_none_or(thread::JoinHandle::is_finished)
    }

    /// Stops the link and returns its report. Packets still inside count as held.
    ///
    /// # Panics
    /// A panic of the link's thread.
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
            // The thread's own panic message has been printed.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
