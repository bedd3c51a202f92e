//! The paired transport between two pepds: many streams over one bad hop, encrypted, repaired by
//! resending and by overcode, paced at the link's rate, and deaf to outages.
//!
//! ```text
//!   flows' bytes                                                     datagrams
//!   ------------  Store   +---------+  packets   +----------+       -----------
//!   open, written ------> | session | ---------> | endpoint | ----> to the peer
//!   events        <------ |         | <--------- |          | <---- from the peer
//!                         +---------+            +----------+
//!                  streams, reports, repair      handshake, seals, replay window,
//!                  pacing, classes, outages      cookies, rekeying, many peers
//! ```
//!
//! - [`endpoint`], tunnels to many peers: handshakes, sealed datagrams; [`crypto`], their secrets
//! - [`session`], one tunnel: packets and streams in plain text
//! - [`stream`], what is written, sent, acknowledged, allowed and received of each stream
//! - [`coding`], overcode over packets
//! - [`wire`], what is in a packet
//! - [`store`], where the streams' bytes are: with the caller
//! - [`parcel`], streams whose bytes are compressed
//! - [`class`], [`schedule`], which bytes go first
//! - [`ecn`], congestion marks inside and outside of the tunnel
//! - [`delivery`], [`arrival`], which segments have arrived: the sender's and the receiver's side of it
//! - [`outage`], whether the link is there
//! - [`path`], what is known of the way to the peer
//! - [`rate`], how fast to send, and when the next packet may leave
//! - [`cause`], why packets did not arrive
//!
//! Nothing here reads a clock or does I/O: bytes, events and the time go in; bytes, events and a
//! deadline come out. `now` is the time since any moment that is the same for all calls.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod arrival;
pub mod cause;
pub mod class;
pub mod coding;
pub mod crypto;
pub mod delivery;
pub mod ecn;
pub mod endpoint;
pub mod outage;
pub mod parcel;
pub mod path;
mod ranges;
pub mod rate;
pub mod schedule;
pub mod session;
pub mod store;
pub mod stream;
mod window;
pub mod wire;
