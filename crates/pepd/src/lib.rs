//! The daemon: built from the layers below, with its observation and diagnosis.
//!
//! The layers are crates: [`pepd_api`], [`pepd_sys`], [`pepd_intercept`], [`pepd_relay`],
//! [`pepd_tunnel`]; [`pepd_control`] has the command line and the commands that query a running
//! pepd.
//!
//! - `accept`: clients of a site's listeners
//! - `admin`: HTTP API of a running pepd
//! - `change`: new configuration for a running pepd
//! - [`daemon`]: construction, operation, drain
//! - [`diagnose`]: problems of this machine
//! - [`kernel`]: comparison of a configuration with the machine
//! - [`summary`]: effective values of a configuration
//! - `observe`: status, history and traces of a running pepd
//! - `page`: web page
//! - `probe`: measurement of the path to a peer under load
//! - [`supervisor`]: process that starts the workers
//! - `switches`: sites that are switched off
//! - `workers`: threads that carry flows
#![deny(unsafe_code)]

mod accept;
mod admin;
mod change;
pub mod cleanup;
pub mod daemon;
pub mod diagnose;
pub mod kernel;
mod observe;
mod page;
mod probe;
mod service;
pub mod summary;
pub mod supervisor;
mod switches;
mod workers;
