//! How a running pepd is asked and told: HTTP and JSON on a socket of its own, which only those can use who may.
//!
//! - `server`, connections and requests, none of which may cost much
//! - `place`, what a connection takes of what there is for all
//! - `http`, what can only be read, by TCP

mod http;
mod place;
mod server;

pub use place::Place;
pub use server::Admin;
