//! `pepd probe`: what the path to a peer is like when it is idle and when it is full, and what a configuration for it would say.
//!
//! ```text
//!   command --order--> routes --order--> tunnels' thread: idle, up, down --samples--> routes --progress, report--> command
//!                                                                                      judge, advice
//! ```
//!
//! - [`judge`](judge()), samples in, figures out; `advice`, figures in, a configuration and remarks out: without I/O
//! - `routes`, how it is asked for; the load is `pepd_tunnel::probe`

mod advice;
mod judge;
mod routes;
#[cfg(test)]
mod tests;

pub use judge::judge;
pub use routes::router;

/// What is known beside the samples.
#[derive(Debug, Clone, PartialEq)]
pub struct Known {
    /// The peer's name.
    pub peer: String,
    /// The rate that the configuration states, in bit/s.
    pub stated: Option<u64>,
}
