//! The link's clock.

use nix::time::{ClockId, clock_gettime};

use crate::link::{NANOS_PER_SECOND, Nanos};

/// Nanoseconds of CLOCK_MONOTONIC since it was made.
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

fn monotonic() -> Nanos {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every kernel has this clock");
    // Neither is negative: the clock counts from boot.
    time.tv_sec() as Nanos * NANOS_PER_SECOND + time.tv_nsec() as Nanos
}
