//! `pepd probe`: properties of the path to a peer when idle and under load, and a suggested
//! configuration.
//!
//! ```text
//! command --order--> routes --order--> tunnels' thread: idle, up, down
//! command <--progress, report-- routes (judge, advice) <--samples-- tunnels' thread
//! ```
//!
//! - [`judge`](judge()): figures from samples; `advice`: suggestions from figures; both without I/O
//! - `routes`: HTTP requests; the load is `pepd_tunnel::probe`

mod advice;
mod judge;
mod routes;
#[cfg(test)]
mod tests;

pub use judge::judge;
pub use routes::router;

/// Facts known besides the samples.
#[derive(Debug, Clone, PartialEq)]
pub struct Known {
    /// Name of the peer.
    pub peer: String,
    /// Rate set in the configuration, in bit/s.
    pub stated: Option<u64>,
}
