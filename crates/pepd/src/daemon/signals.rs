//! Signals to this process, and the end of its supervisor.

use std::{io, os::fd::OwnedFd, time::Instant};

use futures_util::FutureExt as _;
use nix::{sys::signal::SigSet, unistd::getppid};
use pepd_relay::survive::stop::{Stop, Stops};
use tokio::{
    io::{Interest, unix::AsyncFd},
    signal::unix::{Signal, SignalKind, signal},
};

/// Signals that pepd handles.
pub(super) struct Signals {
    pub(super) terminate: Signal,
    pub(super) interrupt: Signal,
    pub(super) report: Signal,
    pub(super) hand_over: Signal,
    pub(super) reload: Signal,
    /// True if the supervisor receives interrupts too, and forwards them.
    pub(super) guarded: bool,
    stops: Stops,
}

/// End of a drain by a signal.
pub(super) enum EndOfDrain {
    /// Open flows are reset.
    AtOnce,
    /// The next process takes over the open flows.
    HandOver,
}

impl Signals {
    pub(super) fn new(guarded: bool) -> io::Result<Self> {
        let signals = Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            report: signal(SignalKind::user_defined1())?,
            hand_over: signal(SignalKind::user_defined2())?,
            reload: signal(SignalKind::hangup())?,
            guarded,
            stops: Stops::default(),
        };
        unblock_signals();
        Ok(signals)
    }

    /// Records the first signal to stop.
    pub(super) fn on_first_stop(&mut self) {
        self.stops.on_request(Instant::now());
    }

    /// Forgets a request to hand over that came before a drain: its sender starts no next process.
    pub(super) fn forget_hand_over(&mut self) {
        while self.hand_over.recv().now_or_never().is_some() {}
    }

    /// Waits for a signal that ends a drain.
    pub(super) async fn end_of_drain(&mut self) -> EndOfDrain {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => {}
                _ = self.interrupt.recv(), if !self.guarded => {}
                _ = self.hand_over.recv(), if self.guarded => return EndOfDrain::HandOver,
            }
            if self.stops.on_request(Instant::now()) == Stop::AtOnce {
                return EndOfDrain::AtOnce;
            }
        }
    }
}

/// Watch of the supervisor, the process that starts the next one.
pub(super) struct Guard(AsyncFd<OwnedFd>);

impl Guard {
    /// Returns the watch; `None` if the process cannot be watched.
    pub(super) fn new() -> Option<Self> {
        let process = pepd_sys::process::pidfd_open(getppid());
        let watched = process.and_then(|fd| pepd_sys::reactor::register(fd, Interest::READABLE));
        watched.map(Self).ok()
    }

    /// Waits for its end, once.
    pub(super) async fn ended(guard: &mut Option<Self>) {
        let Some(Self(process)) = guard else {
            return std::future::pending().await;
        };
        // An error here is not retried.
        let _ = process
            .readable()
            .await
            .map(|mut ready| ready.retain_ready());
        *guard = None;
    }
}

/// Unblocks the signals that the supervisor had blocked.
fn unblock_signals() {
    if let Err(err) = SigSet::all().thread_unblock() {
        tracing::warn!(error = %err, "cannot unblock signals");
    }
}
