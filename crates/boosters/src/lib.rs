//! Protocol boosters: they help IP packets across a bad hop and supplement the protocols there, but
//! never open or close a connection (ramakrishnan2000 §2). Without them, or without the pepd at the
//! far end, traffic continues as before.
//!
//! ```text
//! hosts                         one site of one peer: Chain                           the link
//! -----  packet   +--------------------+     +-------+     +--------------------+ message  -----
//! from_host ----> | host side:         | --> | queue | --> | link side:         | -------> tunnel
//!                 |  checksum          |     |  ack_ |     |  compress          |
//!                 |  data_filter       |     | filter|     |  jitter            |
//!                 |  snoop, divacks    |     |  ack_ |     |  arq               |
//!                 |                    |     | recon.|     |  fec               |
//! <---- to_host   +--------------------+     +-------+     +--------------------+ <--- on_reply
//!          ^
//!          |                                one chain of the peer's: Receiver
//!          |       packet    +------------------------------------------------+ message
//!          +---------------- | acks <- compress <- jitter <- arq <- fec       | <------- tunnel
//!                            +------------------------------------------------+ -------> replies
//! ```
//!
//! - [`booster`], the interface of all boosters: state machines over packets; [`stack`], several in
//!   order
//! - [`packet`], [`ip`], [`checksum`], packets, and how to parse and change them
//! - [`flow`], bounded state per connection
//! - [`queue`], packets before the link, and boosters that inspect them there
//! - [`rule`], conditions under which a booster is on
//! - [`wire`], messages between the two ends
//! - [`chain`], a site's boosters put together
//!
//! This crate reads no clock and does no I/O: packets and the time go in; packets and a deadline
//! come out. `now` is the time since any moment that is the same for all calls. Packets from hosts
//! and from the link are untrusted: none can cause a panic or unbounded growth.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod ack_filter;
pub mod ack_reconstruction;
pub mod arq;
pub mod booster;
pub mod chain;
pub mod checksum;
pub mod compress;
pub mod congestion;
pub mod data_filter;
pub mod divacks;
pub mod ecn;
pub mod exchange;
pub mod fec;
pub mod flow;
pub mod ip;
pub mod jitter;
mod joined;
pub mod packet;
pub mod pieces;
pub mod queue;
pub mod rule;
pub mod settings;
pub mod snoop;
pub mod stack;
pub mod tcp;
pub mod udp_checksum;
pub mod wire;
