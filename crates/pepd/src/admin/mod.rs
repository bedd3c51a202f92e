//! Admin API of a running pepd: HTTP and JSON on a Unix socket, protected by its permissions.
//!
//! - `server`: connections and requests, with bounded cost each
//! - `client`: connections that wait for a slow client
//! - `place`: a connection's share of the common limits
//! - `http`: the read-only part, over TCP

mod client;
mod http;
mod place;
mod server;

pub use place::{Lasting, Place, STREAMS_MAX, TRACES_MAX};
pub use server::Admin;
