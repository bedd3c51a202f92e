//! Changing a running pepd.
//!
//! - [`diff`](diff()), what differs between two configurations
//! - [`Drain`], an orderly end
//! - [`Reload`], another configuration for the flows that there are; `routes`, how it is asked for; `client`, who waits for it

mod client;
mod diff;
mod drain;
mod reload;
mod routes;

pub use client::{wait_for_end, wait_for_next};
pub use diff::diff;
pub use drain::Drain;
pub use reload::{Reload, ReloadError};
pub use routes::router;
