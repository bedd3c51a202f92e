//! Exit codes of all commands.

use std::{error::Error, io::ErrorKind, process::ExitCode};

use winkemu::{
    link::{OptionError, predict::PredictError},
    netns::{NetnsError, PrivilegeError},
    shell::{LinkError, RecordError, TunError},
};

/// Table of exit codes for `--help`.
pub(super) const HELP: &str = "\
Exit codes:
  0  the run counts
  1  the run failed
  2  the command line is invalid
  3  the run does not count: the machine was too busy for exact timing. Ctrl-C on a `winkemu link`
     without --duration, --json and --record exits with 0 instead
  4  the link could not be set up (rights, namespaces, interfaces, files)
  `winkemu run` exits with the code of its command: 128 + n after signal n, 127 if the command was
  not found, 126 if it cannot be run. Exit code 3 only replaces 0.";

/// Exit code of a run that does not count.
pub(super) const INEXACT: u8 = 3;

/// Failure that ends a command.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// Invalid command line.
    #[error("{0}")]
    Usage(String),
    /// Input without a prediction.
    #[error(transparent)]
    Predict(#[from] PredictError),
    /// Failure while running.
    #[error("{0}")]
    Running(String),
    /// Command of `winkemu run` that could not be started.
    #[error("cannot run {command}: {source}")]
    Command {
        /// Name of the program.
        command: String,
        /// Reason given by the kernel.
        source: std::io::Error,
    },
    /// Invalid link options that clap could not check.
    #[error(transparent)]
    Options(#[from] OptionError),
    /// Failure of the set-up.
    #[error(transparent)]
    Setup(Box<dyn Error>),
}

macro_rules! setup {
    ($($error:ty),*) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::Setup(error.into())
            }
        }
    )*};
}
setup!(
    NetnsError,
    PrivilegeError,
    LinkError,
    RecordError,
    TunError,
    std::io::Error
);

impl Failure {
    /// Prints the error with all its causes to stderr, and returns the exit code.
    pub(super) fn report(&self) -> ExitCode {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            // Some messages already contain their cause.
            let next = error.to_string();
            if !text.contains(&next) {
                text = format!("{text}: {next}");
            }
            cause = error.source();
        }
        eprintln!("winkemu: {text}");
        ExitCode::from(match self {
            Self::Running(_) => 1,
            // Exit codes of shells.
            Self::Command { source, .. } if source.kind() == ErrorKind::NotFound => 127,
            Self::Command { .. } => 126,
            Self::Options(OptionError::File { .. }) | Self::Setup(_) => 4,
            Self::Options(_) | Self::Predict(_) | Self::Usage(_) => 2,
        })
    }
}
