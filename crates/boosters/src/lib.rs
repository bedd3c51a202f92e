//! Protocol boosters: they help IP packets across a bad hop and add to what protocols do there, but never begin or end a
//! connection (ramakrishnan2000 §2). Without them, and without the pepd at the far end, all goes on as before.
//!
//! ```text
//!   hosts                         one site of one peer: Chain                              the link
//!   ------  packet   +--------------------+     +-------+     +--------------------+  message  ------
//!   from_host -----> | host side:         | --> | queue | --> | link side:         | ----------> tunnel
//!                    |  checksum          |     |  ack_ |     |  compress          |
//!                    |  data_filter       |     |  filter,     |  jitter            |
//!                    |  snoop, divacks    |     |  ack_ |     |  arq               |
//!                    |                    |     |  recon.     |  fec               |
//!   <----- to_host   +--------------------+     +-------+     +--------------------+ <--- on_reply
//!            ^
//!            |                                  one chain of the peer's: Receiver
//!            |        packet    +------------------------------------------------+  message
//!            +----------------- | acks <- compress <- jitter <- arq <- fec        | <---------- tunnel
//!                               +------------------------------------------------+ ----> replies
//! ```
//!
//! - [`booster`], what all boosters are: state machines over packets; [`stack`], one after the other
//! - [`packet`], [`ip`], [`checksum`], what a packet is, what it says, and how to change it
//! - [`flow`], bounded state per connection
//! - [`queue`], packets before the link, and what may look at them there
//! - [`rule`], when a booster is on
//! - [`wire`], messages between the two ends
//! - [`chain`], a site's boosters put together
//!
//! Nothing here reads a clock or does I/O: packets and the time go in; packets and a deadline come out. `now` is the time
//! since any moment that is the same for all calls. What comes from hosts and from the link is hostile until
//! shown otherwise: no packet makes anything here panic or grow without bound.
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
