//! The daemon around [`pep_core`]: sockets, rules, tasks, command line.
//!
//! - [`accept`], clients of a site's listeners
//! - [`admin`], how a running pepd is asked and told
//! - [`arena`], the memory of all flows
//! - [`capture`], the packets of one flow as a file
//! - [`change`], another configuration for a running pepd
//! - [`cli`], [`exit`], how the program is told and how it ends
//! - [`congestion`], congestion controls of the kernel and our own
//! - [`custody`], what does not fit into memory while the link is away
//! - [`daemon`], build, run, drain
//! - [`diagnose`], what is amiss on this machine
//! - [`flow`], one connection: connect, relay, close
//! - [`kernel`], whether this machine has what a configuration asks for
//! - [`keys`], of tunnels: making them, files with them
//! - [`held`], server legs of held SYNs; [`unanswered`], servers that are silent
//! - [`leg`], sockets and their options
//! - [`limits`], how many flows there may be
//! - [`load`], [`summary`], a configuration file and what it comes to
//! - [`log`], to standard error
//! - [`migrate`], what PEPsal was told, as a configuration of ours
//! - `notices`, what the kernel tells unasked
//! - [`observe`], what is seen of a running pepd
//! - [`outage`], whether the link is there
//! - [`page`], for browsers
//! - [`probe`], what the path to a peer is like under load
//! - [`share`], how fast each flow may send into the link
//! - [`stats`], counters; [`tally`], those of one site
//! - [`supervisor`], the process that starts the next one
//! - [`survive`], flows that outlive the process that carries them
//! - [`switches`], sites that are off for a while
//! - [`tunnel`], flows to and from peers
//! - [`sys`], system calls without a safe wrapper
//! - [`top`], a running pepd in a terminal
//! - [`threads`], made ahead; [`workers`], those that carry flows
#![deny(unsafe_code)]

pub mod accept;
pub mod admin;
pub mod arena;
pub mod capture;
pub mod change;
pub mod cleanup;
pub mod cli;
pub mod custody;
pub mod daemon;
pub mod diagnose;
pub mod exit;
pub mod flow;
pub mod kernel;
pub mod limits;
pub mod load;
pub mod migrate;
pub mod observe;
pub mod outage;
pub mod page;
pub mod probe;
pub mod service;
pub mod share;
pub mod summary;
pub mod supervisor;
pub mod survive;
pub mod switches;
pub mod top;
pub mod tunnel;
pub mod workers;
