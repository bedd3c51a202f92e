//! Packet erasure coding at memory speed: block and sliding-window codes that add repair packets to
//! a stream, and a control that limits them to the need of the link.
//!
//! - [`kernel`], linear combinations of bytes over GF(2^8), with this machine's vector instructions
//! - [`code`], block erasure codes: k symbols, and any number of rows
//! - [`block`], encoder and decoder of blocks of packets
//! - [`symbol`], packets of unequal length as symbols
//! - [`wire`], headers
//! - [`scheme`], common interface of encoders and decoders of packets
//! - [`serial`], numbers that count on modulo 2^32
//! - [`window`], a sliding window code: repair packets over the last few packets
//! - [`overhead`], repair packets by number of data packets
//! - [`control`], FEC overhead that follows the link: loss measured, fitted, and answered
//! - [`theory`], failure rates of codes on links with independent or bursty losses
//!
//! The crate reads no clock and does no I/O: packets, events and the time go in; packets and a
//! deadline come out.
#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod block;
pub mod code;
pub mod control;
pub mod gf256;
#[cfg_attr(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    expect(unsafe_code, reason = "vectors are read and written through pointers")
)]
pub mod kernel;
pub mod overhead;
pub mod scheme;
pub mod serial;
pub mod symbol;
#[cfg(test)]
mod testing;
pub mod theory;
pub mod window;
pub mod wire;
