//! Estimates of the path to the peer.

mod memory;
mod minimum;
mod mtu;
mod sample;

pub use memory::{PathMemory, Trust};
pub(crate) use minimum::{Minimum, QueueDelay, RTT_HALF};
pub use mtu::{Mtu, MtuProbe};
pub use sample::PathSample;
