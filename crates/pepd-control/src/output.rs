//! What is printed, and where.

use std::{
    error::Error,
    fmt,
    io::{self, Write as _},
    iter,
};

use pepd_api::exit::ExitStatus;
use pepd_sys::{load::LoadError, log};
use tracing::Level;

/// An error and all that led to it, in one line.
pub fn chain(err: &dyn Error) -> String {
    let causes = iter::successors(Some(err), |&err| err.source());
    causes
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

/// Prints every error on a line of its own.
pub fn refuse(err: &LoadError) -> ExitStatus {
    fail(format_args!("{err}"));
    ExitStatus::Configuration
}

/// To standard error, as errors where that is the journal.
pub fn fail(text: fmt::Arguments<'_>) {
    if !log::is_journal() {
        return complain(text);
    }
    let priority = log::priority(Level::ERROR);
    for line in text.to_string().lines() {
        complain(format_args!("{priority}{line}"));
    }
}

/// To standard error; where that cannot be written to, nobody can be told.
pub fn complain(text: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// To standard output, at once.
pub(crate) fn try_print(text: fmt::Arguments<'_>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_fmt(text).and_then(|()| out.flush())
}

/// To standard output; a reader that went away, as `head` does, is none of our concern.
pub fn print(text: fmt::Arguments<'_>) -> ExitStatus {
    match try_print(text) {
        Err(err) if err.kind() != io::ErrorKind::BrokenPipe => {
            complain(format_args!("pepd: cannot write to standard output: {err}"));
            ExitStatus::Runtime
        }
        _ => ExitStatus::Success,
    }
}
