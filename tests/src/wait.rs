//! Waiting for conditions, in place of sleeping and hoping.

use std::{
    thread,
    time::{Duration, Instant},
};

/// How long anything that must happen may take before a test calls it hung. Far above what it
/// takes on an idle machine, since many tests share few cores.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Between two looks at a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(3);

/// Looks until there is an answer, for [`PATIENCE`] at most.
///
/// # Panics
/// When the time is over, naming `what` was waited for.
pub fn wait_for<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    wait_within(PATIENCE, look).unwrap_or_else(|| panic!("waited {PATIENCE:?} in vain: {what}"))
}

/// Looks until the condition holds, for [`PATIENCE`] at most.
///
/// # Panics
/// When the time is over, naming `what` was waited for.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    wait_for(what, || holds().then_some(()));
}

/// Looks until there is an answer; `None` when there is none within the time.
pub fn wait_within<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(answer) = look() {
            return Some(answer);
        }
        if Instant::now() >= deadline {
            return None;
        }
        thread::sleep(POLL_INTERVAL);
    }
}
