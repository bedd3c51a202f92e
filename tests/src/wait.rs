//! Waiting for conditions instead of sleeping.

use std::{
    thread,
    time::{Duration, Instant},
};

/// The time after which a test considers an expected event missing. Far above the time on an idle
/// machine, since many tests share few cores.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The interval between two checks of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(3);

/// Polls until `look` returns a value, up to [`PATIENCE`].
///
/// # Panics
/// On a timeout, with `what` was waited for.
pub fn wait_for<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    wait_within(PATIENCE, look).unwrap_or_else(|| panic!("waited {PATIENCE:?} in vain: {what}"))
}

/// Polls until the condition holds, up to [`PATIENCE`].
///
/// # Panics
/// On a timeout, with `what` was waited for.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    wait_for(what, || holds().then_some(()));
}

/// Polls until `look` returns a value; `None` on a timeout.
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
