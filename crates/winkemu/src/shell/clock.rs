//! Clock of the link.

use nix::time::{ClockId, clock_gettime};

use crate::link::{NANOS_PER_SECOND, Nanos};

/// Nanoseconds of CLOCK_MONOTONIC since the clock was created.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    start: Nanos,
}

impl Clock {
    pub(super) fn start() -> Self {
        Self { start: monotonic() }
    }

    pub(super) fn now(self) -> Nanos {
        monotonic() - self.start
    }
}

/// CPU time of the calling thread.
pub(super) fn thread_time() -> Nanos {
    read(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

fn monotonic() -> Nanos {
    read(ClockId::CLOCK_MONOTONIC)
}

fn read(clock: ClockId) -> Nanos {
    let time = clock_gettime(clock).expect("every kernel has these clocks");
    // Neither is negative: these clocks count from boot and from the thread's start.
    time.tv_sec() as Nanos * NANOS_PER_SECOND + time.tv_nsec() as Nanos
}
