//! What others tell this process by signals, or by their end.

use std::{io, os::fd::OwnedFd, time::Instant};

use nix::{sys::signal::SigSet, unistd::getppid};
use pepd_relay::survive::stop::{Stop, Stops};
use tokio::{
    io::{Interest, unix::AsyncFd},
    signal::unix::{Signal, SignalKind, signal},
};

/// Signals that mean something to us.
pub(super) struct Signals {
    pub(super) terminate: Signal,
    pub(super) interrupt: Signal,
    pub(super) report: Signal,
    pub(super) hand_over: Signal,
    pub(super) reload: Signal,
    /// Somebody else hears of interrupts, too, and tells us.
    pub(super) guarded: bool,
    stops: Stops,
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

    /// Takes note of the first one that asks us to end.
    pub(super) fn on_first_stop(&mut self) {
        self.stops.on_request(Instant::now());
    }

    /// Waits for one that asks us to end at once.
    pub(super) async fn stop_at_once(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => {}
                _ = self.interrupt.recv(), if !self.guarded => {}
            }
            if self.stops.on_request(Instant::now()) == Stop::AtOnce {
                return;
            }
        }
    }
}

/// The process that starts the next one.
pub(super) struct Guard(AsyncFd<OwnedFd>);

impl Guard {
    /// `None` where it cannot be watched.
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
        // What cannot be waited for is not waited for again.
        let _ = process
            .readable()
            .await
            .map(|mut ready| ready.retain_ready());
        *guard = None;
    }
}

/// Those that the supervisor had blocked.
fn unblock_signals() {
    if let Err(err) = SigSet::all().thread_unblock() {
        tracing::warn!(error = %err, "cannot unblock signals");
    }
}
