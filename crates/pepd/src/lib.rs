//! The daemon around [`pep_core`]: sockets, rules, tasks, command line.
//!
//! - [`arena`], the memory of all flows
//! - [`cli`], [`exit`], how the program is told and how it ends
//! - [`kernel`], whether this machine has what a configuration asks for
//! - [`intercept`], packet filter rules, routes and TUN devices
//! - [`leg`], sockets and their options
//! - [`load`], [`summary`], a configuration file and what it comes to
//! - [`log`], to standard error
//! - [`sys`], system calls without a safe wrapper
#![deny(unsafe_code)]

pub mod arena;
pub mod cli;
pub mod exit;
pub mod intercept;
pub mod kernel;
pub mod leg;
pub mod load;
pub mod log;
pub mod summary;
#[expect(unsafe_code, reason = "system calls; nowhere else")]
pub mod sys;
