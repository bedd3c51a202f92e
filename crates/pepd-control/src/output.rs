//! Printing of results and errors.

use std::{
    error::Error,
    fmt,
    io::{self, Write as _},
    iter,
};

use pepd_api::exit::ExitStatus;
use pepd_sys::{load::LoadError, log};
use tracing::Level;

/// Joins an error and its sources in one line.
pub fn chain(err: &dyn Error) -> String {
    let causes = iter::successors(Some(err), |&err| err.source());
    causes
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

/// Prints every error of a configuration on a line of its own.
pub fn refuse(err: &LoadError) -> ExitStatus {
    fail(format_args!("{err}"));
    ExitStatus::Configuration
}

/// Prints errors to standard error, with the priority of errors if that is the journal.
pub fn fail(text: fmt::Arguments<'_>) {
    if !log::is_journal() {
        return complain(text);
    }
    let priority = log::priority(Level::ERROR);
    for line in text.to_string().lines() {
        complain(format_args!("{priority}{line}"));
    }
}

/// Prints to standard error, and ignores failures to do so.
pub fn complain(text: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Prints to standard output and flushes it.
pub(crate) fn try_print(text: fmt::Arguments<'_>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_fmt(text).and_then(|()| out.flush())
}

/// Prints to standard output. A closed pipe, as after `head`, is no error.
pub fn print(text: fmt::Arguments<'_>) -> ExitStatus {
    match try_print(text) {
        Err(err) if err.kind() != io::ErrorKind::BrokenPipe => {
            complain(format_args!("pepd: cannot write to standard output: {err}"));
            ExitStatus::Runtime
        }
        _ => ExitStatus::Success,
    }
}
