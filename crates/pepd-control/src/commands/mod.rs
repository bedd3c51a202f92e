//! Commands that query a running pepd, or create and read files.
//!
//! - `requests`: one request, one response; `trace`: one flow live; `qlog`: its detailed record
//! - `capture`: packets of a flow
//! - `files`: keys, and settings of PEPsal

mod capture;
mod files;
mod qlog;
mod requests;
mod trace;

use std::error::Error;

use pepd_api::exit::ExitStatus;
use pepd_sys::load::LoadError;

use crate::{
    cli::ClientCommand as Command,
    client::AskError,
    output::{fail, refuse},
};

/// Runs a command and prints its result or error.
pub fn carry_out(command: &Command) -> ExitStatus {
    let done = match command {
        Command::Link(args) => requests::link(args),
        Command::Status(args) => requests::status(args),
        Command::Top(args) => requests::top(args),
        Command::Flows(args) => requests::flows(args),
        Command::Trace(args) => trace::trace(args),
        Command::Probe(args) => requests::probe(args),
        Command::Capture(args) => capture::capture(args),
        Command::Custody(args) => requests::custody(args),
        Command::Reload(args) => requests::reload(args),
        Command::Site(args) => requests::site(args),
        Command::Drain(args) => requests::drain(args),
        Command::Keygen(args) => files::keygen(args),
        Command::Migrate(args) => files::migrate(args),
    };
    done.unwrap_or_else(|err| failed(&*err))
}

fn failed(err: &(dyn Error + 'static)) -> ExitStatus {
    if let Some(err) = err.downcast_ref::<LoadError>() {
        return refuse(err);
    }
    if let Some(AskError::Wrong(why)) = err.downcast_ref() {
        fail(format_args!("{why}"));
        return ExitStatus::Configuration;
    }
    fail(format_args!("pepd: {err}"));
    ExitStatus::Runtime
}
