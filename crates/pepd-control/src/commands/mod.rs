//! Commands that ask a running pepd, or make and read files.
//!
//! - `asking`, one question, one answer; `trace`, one flow as it goes on; `qlog`, the same into a file
//! - `capture`, the packets of a flow
//! - `files`, keys, and settings of PEPsal

mod asking;
mod capture;
mod files;
mod qlog;
mod trace;

use std::error::Error;

use pepd_api::exit::ExitStatus;
use pepd_sys::load::LoadError;

use crate::{
    cli::ClientCommand as Command,
    client::AskError,
    output::{fail, refuse},
};

/// Carries out a command, and prints what comes of it, or why nothing does.
pub fn carry_out(command: &Command) -> ExitStatus {
    let done = match command {
        Command::Link(args) => asking::link(args),
        Command::Status(args) => asking::status(args),
        Command::Top(args) => asking::top(args),
        Command::Flows(args) => asking::flows(args),
        Command::Trace(args) => trace::trace(args),
        Command::Probe(args) => asking::probe(args),
        Command::Capture(args) => capture::capture(args),
        Command::Custody(args) => asking::custody(args),
        Command::Reload(args) => asking::reload(args),
        Command::Site(args) => asking::site(args),
        Command::Drain(args) => asking::drain(args),
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
