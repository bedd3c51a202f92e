//! Sending rate, stated or measured, and pacing.

mod auto;
mod controller;
mod pacer;
mod statement;

pub use auto::{Auto, min_safe_rate};
pub use controller::{Controller, ControllerConfig, Found};
pub use pacer::{Batch, Calm, Pacer};
pub use statement::Rate;

/// Returns the time that this many bytes take at a rate in bits per second; 0 counts as 1.
pub(crate) fn time_of(bytes: u64, rate: u64) -> std::time::Duration {
    let rate = rate.max(1);
    let nanos = match bytes.checked_mul(8_000_000_000) {
        // Fast path for all real packets: a 128-bit division costs as much as the rest of pacing.
        Some(product) => product / rate,
        None => {
            let nanos = u128::from(bytes) * 8_000_000_000 / u128::from(rate);
            u64::try_from(nanos).unwrap_or(u64::MAX)
        }
    };
    std::time::Duration::from_nanos(nanos)
}
