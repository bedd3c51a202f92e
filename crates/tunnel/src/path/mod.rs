//! What is known of the way to the peer.

mod least;
mod memory;
mod mtu;
mod sample;

pub(crate) use least::{Least, QueueDelay, RTT_HALF};
pub use memory::{PathMemory, Trust};
pub use mtu::{Mtu, MtuProbe};
pub use sample::PathSample;
