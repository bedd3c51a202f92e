//! Idle timer of a flow.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use pep_core::relay::{IdleClock, IdleEvent};
use tokio::time::{Instant, Sleep, sleep};

/// Longer than any flow's life: the timer of a flow without a deadline.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Single timer of a flow, with its meaning. The flow's task stores the timer, so that no flow
/// needs an allocation for it.
pub struct Idle<'a> {
    clock: IdleClock,
    timer: Pin<&'a mut Sleep>,
}

impl<'a> Idle<'a> {
    /// Creates the timer of a flow that expires after `limit` without a byte, if there is a limit;
    /// `looks` is true if it looks for keepalives. `timer` comes from [`timer`].
    pub fn new(limit: Option<Duration>, looks: bool, timer: Pin<&'a mut Sleep>) -> Self {
        Self {
            clock: IdleClock::new(limit, looks),
            timer,
        }
    }

    /// Notes that a byte has moved.
    pub fn on_activity(&mut self) {
        if self.clock.on_activity() {
            self.timer.as_mut().reset(Instant::now() + IdleClock::QUIET);
        }
    }

    /// Notes how many keepalives a look has found.
    pub fn on_looked(&mut self, keepalives: u32) {
        self.clock.on_looked(keepalives);
    }

    /// Returns ready when a deadline has passed. The caller polls again afterwards.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<IdleEvent> {
        self.timer.as_mut().poll(cx).map(|()| {
            let (event, next) = self.clock.handle_timeout();
            let next = next.unwrap_or(NEVER);
            self.timer.as_mut().reset(Instant::now() + next);
            event
        })
    }
}

/// Returns the timer of a new flow.
pub fn timer() -> Sleep {
    sleep(IdleClock::QUIET)
}
