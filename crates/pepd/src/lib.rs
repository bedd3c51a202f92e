//! The daemon around [`pep_core`]: sockets, rules, tasks, command line.
//!
//! - [`leg`], sockets and their options
//! - [`sys`], system calls without a safe wrapper
#![deny(unsafe_code)]

pub mod leg;
#[expect(unsafe_code, reason = "system calls; nowhere else")]
pub mod sys;
