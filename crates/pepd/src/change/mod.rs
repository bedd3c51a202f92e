//! Changing a running pepd.
//!
//! - [`diff`](diff()), what differs between two configurations
//! - [`Drain`], an orderly end
//! - [`Reload`], another configuration for the flows that there are; `routes`, how it is asked for

mod diff;
mod drain;
mod reload;
mod routes;

pub use diff::diff;
pub use drain::Drain;
pub use reload::{Reload, ReloadError};
pub use routes::router;
