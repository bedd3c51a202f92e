//! The timer of a flow on which nothing moves.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use pep_core::relay::{IdleClock, IdleEvent};
use tokio::time::{Instant, Sleep, sleep};

/// Far beyond any flow's life: the timer of one that has nothing to wait for.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// A flow's one timer, and what it means. Where the timer is belongs to the flow's task: no flow has
/// an allocation for it.
pub struct Idle<'a> {
    clock: IdleClock,
    timer: Pin<&'a mut Sleep>,
}

impl<'a> Idle<'a> {
    /// Of a flow that expires after `limit` without a byte, if there is one. `timer` is one of [`timer`].
    pub fn new(limit: Option<Duration>, timer: Pin<&'a mut Sleep>) -> Self {
        Self {
            clock: IdleClock::new(limit),
            timer,
        }
    }

    /// A byte has moved.
    pub fn on_activity(&mut self) {
        if self.clock.on_activity() {
            self.timer.as_mut().reset(Instant::now() + IdleClock::QUIET);
        }
    }

    /// Ready when time has told something; to be asked again then.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<IdleEvent> {
        self.timer.as_mut().poll(cx).map(|()| {
            let (event, next) = self.clock.handle_timeout();
            let next = next.unwrap_or(NEVER);
            self.timer.as_mut().reset(Instant::now() + next);
            event
        })
    }
}

/// The timer of a flow that begins now.
pub fn timer() -> Sleep {
    sleep(IdleClock::QUIET)
}
