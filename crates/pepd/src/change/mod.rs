//! Changes of a running pepd.
//!
//! - [`diff`](diff()): difference of two configurations
//! - [`Drain`]: orderly end
//! - [`Reload`]: new configuration for open flows; `routes`: its HTTP requests

mod diff;
mod drain;
mod reload;
mod routes;

pub use diff::diff;
pub use drain::Drain;
pub use reload::{Reload, ReloadError};
pub use routes::router;
