//! How fast to send: stated, or measured; and when the next packet may leave.

mod auto;
mod controller;
mod pacer;
mod statement;

pub use auto::{Auto, min_safe_rate};
pub use controller::{Controller, ControllerConfig, Found};
pub use pacer::{Batch, Pacer};
pub use statement::Rate;

/// The time that so many bytes take at a rate in bits a second, which is taken for 1 if it is 0.
pub(crate) fn time_of(bytes: u64, rate: u64) -> std::time::Duration {
    let rate = rate.max(1);
    let nanos = match bytes.checked_mul(8_000_000_000) {
        // All packets: a division of 128 bits takes as long as everything else that pacing does.
        Some(product) => product / rate,
        None => {
            let nanos = u128::from(bytes) * 8_000_000_000 / u128::from(rate);
            u64::try_from(nanos).unwrap_or(u64::MAX)
        }
    };
    std::time::Duration::from_nanos(nanos)
}
