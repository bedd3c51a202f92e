//! Packet erasure coding at memory speed: block and sliding-window codes that add overcode to a
//! stream of packets, and a control that sends no more of it than the link's loss asks for.
//!
//! - [`kernel`], linear combinations of bytes over GF(2^8), with this machine's vector instructions
//! - [`code`], block erasure codes: k symbols, as many rows of overcode as wanted
//! - [`block`], encoder and decoder of blocks of packets
//! - [`symbol`], packets of unequal length as symbols
//! - [`wire`], headers
//! - [`scheme`], what encoders and decoders of packets have in common
//! - [`serial`], numbers that count on modulo 2^32
//! - [`window`], a sliding window code: repair packets over the last few packets
//! - [`overhead`], how many repair packets there are for how many data packets
//! - [`control`], overcode that follows the link: loss measured, fitted, and answered
//! - [`theory`], how often a code fails on a link that loses packets, alone or in bursts
//!
//! Nothing here reads a clock or does I/O: packets, events and the time go in; packets and a
//! deadline come out.
//!
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
