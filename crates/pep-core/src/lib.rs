//! Decisions of pepd without any I/O: no sockets, files, clock or threads.
//!
//! - [`arena`], state that outlives the process, and its recovery by a successor
//! - [`budget`], a bounded sum of bytes
//! - [`chunks`], storage of the bytes of a stream that arrive out of order
//! - [`config`], TOML text to checked types
//! - [`custody`], limits on data that pepd has acknowledged to hosts and holds for peers
//! - [`stream_header`], the description of a flow for the far end of its tunnel
//! - [`fair`], equal shares of time for parties whose items wait
//! - [`fragments`], a bound on fragments that wait for the rest of their datagrams
//! - [`history`], measurements of the last hours
//! - [`hosts`], flows per host
//! - [`key`], tunnel keys as text
//! - [`lookups`], scheduling of name lookups
//! - [`midway`], connections whose beginning this machine has not seen
//! - [`outage`], detection of link outages
//! - [`pace`], pace of events that a peer can cause at will
//! - [`parties`], the hosts and peers among which pepd divides what it has
//! - [`reach`], the hosts and destinations of a peer
//! - [`receive`], sizes of the kernel's receive buffers
//! - [`redirection`], detection of SYNs that rules redirect but that never arrive
//! - [`relay`], next actions on the two legs of a flow
//! - [`ring`], positions of the bytes of one direction
//! - [`round_robin`], turns of parties whose items wait
//! - [`rounds`], equal shares of time for parties whose tasks run
//! - [`share`], fair sharing of the link's rate
//! - [`site`], policies of flows
//! - [`stats`], counters
//! - [`syn`], SYNs that wait for the server's answer
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod arena;
pub mod budget;
pub mod chunks;
pub mod config;
pub mod custody;
mod expiring;
pub mod fair;
pub mod fragments;
pub mod history;
pub mod hosts;
pub mod key;
pub mod lookups;
pub mod midway;
pub mod outage;
pub mod pace;
pub mod parties;
pub mod reach;
mod reading;
pub mod receive;
pub mod redirection;
pub mod relay;
pub mod ring;
pub mod round_robin;
pub mod rounds;
pub mod share;
pub mod site;
pub mod stats;
pub mod stream_header;
pub mod syn;
