//! What is known of the way to the peer.

mod sample;

pub use sample::PathSample;
