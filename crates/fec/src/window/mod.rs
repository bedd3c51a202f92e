//! A sliding window code: random linear combinations of the last few packets, as in RFC 8681.
//!
//! A block code repairs a loss when its block ends, so half a block later on average. Here a repair
//! packet goes out every few data packets, over the last `window` of them, and a single loss is
//! repaired by the next one:
//!
//! ```text
//!   data     1 2 3 4 5   6 7 8 9 10   11 12 13 ...          window of 8, one repair for 5
//!   repair            R1          R2
//!                     |           `- over 3 to 10
//!                     `------------- over 1 to 5
//! ```
//!
//! Several losses need as many repair packets over them: the decoder solves the linear equations
//! that it has, as far as they go, and later repair packets help to restore what earlier ones
//! could not. How much overcode there is and how long the window are independent: a long window
//! restores more at the same overcode, and costs more time to compute (one multiplication and
//! addition of a packet for each packet in the window). Windows are from 3 packets (a message now
//! and then, each with a repair packet) to some 128 (streams).
//!
//! The field is that of RFC 8681, GF(2^8) with the polynomial 0x11d, and so are the coefficients
//! ([`coefficients`]). Headers are our own ([`crate::wire`]), and packets become symbols in our own
//! way ([`crate::symbol`]).

pub mod coefficients;
mod config;
mod decoder;
mod encoder;
mod outbox;
mod restore;
mod slot;
mod stats;
mod strays;
mod system;
#[cfg(test)]
mod tests;
mod tinymt;

pub use config::{ConfigError, DecoderConfig, EncoderConfig, REPAIRS_MAX, SPAN_MAX, WINDOW_MAX};
pub use decoder::WindowDecoder;
pub use encoder::WindowEncoder;
pub use stats::{DecoderStats, EncoderStats};
