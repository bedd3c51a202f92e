//! Sliding window code: random linear combinations of the last few packets, as in RFC 8681.
//!
//! A block code repairs a loss when its block ends, so half a block later on average. The window
//! code sends a repair packet every few data packets, over the last `window` of them, and the next
//! one repairs a single loss:
//!
//! ```text
//!   data     1 2 3 4 5   6 7 8 9 10   11 12 13 ...          window of 8, one repair for 5
//!   repair            R1          R2
//!                     |           `- over 3 to 10
//!                     `------------- over 1 to 5
//! ```
//!
//! Several losses need as many repair packets over them. The decoder solves the linear equations
//! that it has, as far as possible, and later repair packets help to restore what earlier ones
//! could not. Overhead and window length are independent: a longer window restores more at the same
//! overhead, and costs more CPU time (one multiplication and addition of a packet for each packet
//! in the window). Windows range from 3 packets (occasional messages, each with a repair packet) to
//! some 128 (streams).
//!
//! Results for a million packets each (`cargo run --release -p fec --example codes`). "in order" is
//! the delay, in packets, until a packet and all before it are present; "recovered" is the delay of
//! lost packets:
//!
//! ```text
//! lost               overhead  code           stays lost   recovered       in order
//!                                                          mean  p95  p99  mean  p95  p99
//! 2 %, independent      7 %    blocks of 100    8.0e-5       53   98  102  23.4   79   93
//!                              window of 50     7.2e-5       15   44   73   2.2   13   39
//!                              window of 128    none         15   45   75   2.3   13   40
//! 5 %, independent     20 %    blocks of 50     4.9e-5       28   51   53  14.5   43   49
//!                              window of 50     none        5.6   16   28   0.8    5   14
//! 2 %, bursts of 4     20 %    blocks of 50     4.5e-3       30   52   56   2.6   23   42
//!                              blocks of 100    8.3e-4       58  102  109   9.3   62   88
//!                              window of 128    2.9e-5       41  105  165   2.6   17   61
//! 5.5 %, bursts of 6.7 20 %    blocks of 100    1.8e-2       61  106  113    14   74   96
//!                              window of 50     2.9e-2       37   69   91   3.7   29   56
//!                              window of 128    6.1e-3       84  202  284    15   97  184
//! 5 %, independent    100 %    copies           2.5e-3        1    1    1   0.0    0    1
//!                              window of 3      1.1e-5      1.1    3    3   0.1    1    1
//! ```
//!
//! Where the overhead is too small for the losses, a long window keeps trying for long. At 5 % of
//! loss with 7 % of overhead, a window of 128 loses 0.6 %, blocks of 100 lose 1.4 %; but packets
//! that the window restores are 80 packets late, those of blocks 55.
//!
//! The field is that of RFC 8681, GF(2^8) with the polynomial 0x11d, and so are the coefficients
//! ([`coefficients`]). Headers ([`crate::wire`]) and the form of symbols ([`crate::symbol`]) are
//! this crate's own.

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
