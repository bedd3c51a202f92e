//! Changing a running pepd.
//!
//! - [`diff`](diff()), what differs between two configurations
//! - [`Reload`], another configuration for the flows that there are; `routes`, how it is asked for; `client`, who waits for it

mod client;
mod diff;
mod reload;
mod routes;

pub use client::wait_for_next;
pub use diff::{Change, diff};
pub use reload::{Reload, ReloadError, ReloadReport};
pub use routes::{ReloadOrder, RunningConfig, router};
