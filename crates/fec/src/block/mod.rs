//! Block code for packets: data at once and unchanged, followed by repair packets
//! (ramakrishnan2000, chapter 5, the FZC booster).
//!
//! [`BlockEncoder`] numbers data packets by block and index, and stores copies. A block closes
//!
//! - when it has `k` packets,
//! - when `block_time` has passed since the first packet, or
//! - when nothing more is waiting to be sent ([`handle_drained`]).
//!
//! Then its repair packets follow. A block that closes before it has `k` packets is *short*: the
//! missing ones are virtual and not sent, and it gets the repair packets of a block of that size.
//! [`BlockDecoder`] passes data on at once. It computes the missing packets of a block as soon as
//! as many of its packets, data and repair, have arrived as it has data packets.
//!
//! ```text
//!            block 7                              block 8
//! encoder:   d0 d1 d2 d3  r0 r1                   d0 d1 (drained)  r0 r1
//! link:      d0 -- d2 d3  r0 --                   -- d1            r0 --
//! decoder:   d0    d2 d3  [d1]                       d1            [d0]        [] recovered
//! ```
//!
//! With an interleaving depth of I, I blocks are open at a time and packets go to them in turn, so
//! that I blocks share a burst of losses. They close together, and row 0 of each of them is sent
//! before row 1 of any:
//!
//! ```text
//! I = 3:     a0 b0 c0 a1 b1 c1 ... | row 0 of a, of b, of c | row 1 of a, of b, of c | ...
//! ```
//!
//! [`handle_drained`]: crate::scheme::Encoder::handle_drained

mod bits;
mod config;
mod decoder;
mod encoder;
mod stats;
#[cfg(test)]
mod tests;

pub use config::{BLOCK_TIME_MAX, ConfigError, DecoderConfig, EncoderConfig, block_time};
pub use decoder::BlockDecoder;
pub use encoder::{BlockEncoder, NotKept};
pub use stats::{DecoderStats, EncoderStats};
