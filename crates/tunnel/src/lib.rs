//! The paired transport between two pepds: many streams over one bad link. It encrypts, repairs
//! losses by retransmission and FEC, paces at the link's rate, and survives outages.
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
//! - [`endpoint`]: tunnels to many peers (handshakes, sealed datagrams); [`crypto`]: their keys
//! - [`session`]: one tunnel (packets and streams in plain text)
//! - [`stream`]: bytes written, sent, acknowledged, allowed and received per stream
//! - [`coding`]: FEC over packets
//! - [`wire`]: packet format
//! - [`store`]: access to the streams' bytes, which the caller keeps
//! - [`compression`]: compressed streams
//! - [`class`], [`schedule`]: priorities and fair queueing
//! - [`ecn`]: congestion marks inside and outside the tunnel
//! - [`delivery`], [`arrival`]: acknowledgement of segments at the sender and at the receiver
//! - [`outage`]: detection of outages
//! - [`path`]: estimates of the path to the peer
//! - [`rate`]: sending rate and pacing
//! - [`cause`]: classification of losses
//!
//! The crate does no I/O and reads no clock. Bytes, events and the time are inputs; bytes, events
//! and a deadline are outputs. `now` is the time since an arbitrary moment that is the same for all
//! calls.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod arrival;
pub mod cause;
pub mod class;
pub mod coding;
pub mod compression;
pub mod crypto;
pub mod delivery;
pub mod ecn;
pub mod endpoint;
pub mod outage;
pub mod path;
mod ranges;
pub mod rate;
pub mod schedule;
pub mod session;
pub mod store;
pub mod stream;
mod window;
pub mod wire;
