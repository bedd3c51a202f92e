//! What is known of the way to the peer.

mod mtu;
mod sample;

pub use mtu::{Mtu, MtuProbe};
pub use sample::PathSample;
