//! Exit codes, in one place.

use std::{error::Error, io::ErrorKind, process::ExitCode};

use winkemu::{
    link::{OptionError, predict::PredictError},
    netns::{NetnsError, PrivilegeError},
    shell::{LinkError, RecordError, TunError},
};

/// For `--help`.
pub(super) const HELP: &str = "\
Exit codes:
  0  the run counts
  1  it failed while running
  2  the command line is wrong
  3  the run does not count: the machine was too busy for it to be exact. Not after Ctrl-C on a
     `winkemu link` without --duration, --json and --record
  4  the link could not be set up (rights, namespaces, interfaces, files)
  `winkemu run` exits with its command's own code (128 + n where signal n ended it; 127 where there
  is no such command, 126 where it cannot be run), and with 3 only in place of 0.";

/// The code of a run that does not count.
pub(super) const INEXACT: u8 = 3;

/// Why a command ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The command line asks for what cannot be.
    #[error("{0}")]
    Usage(String),
    /// What is to be predicted cannot be.
    #[error(transparent)]
    Predict(#[from] PredictError),
    /// While running.
    #[error("{0}")]
    Running(String),
    /// The command of `winkemu run`.
    #[error("cannot run {command}: {source}")]
    Command {
        /// The program's name.
        command: String,
        /// The kernel's reason.
        source: std::io::Error,
    },
    /// A value that clap could not judge.
    #[error(transparent)]
    Options(#[from] OptionError),
    /// Before running.
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
    /// Says why on stderr, with all causes.
    pub(super) fn report(&self) -> ExitCode {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            // Some messages hold their cause already.
            let next = error.to_string();
            if !text.contains(&next) {
                text = format!("{text}: {next}");
            }
            cause = error.source();
        }
        eprintln!("winkemu: {text}");
        ExitCode::from(match self {
            Self::Running(_) => 1,
            // As shells have it.
            Self::Command { source, .. } if source.kind() == ErrorKind::NotFound => 127,
            Self::Command { .. } => 126,
            Self::Options(OptionError::File { .. }) | Self::Setup(_) => 4,
            Self::Options(_) | Self::Predict(_) | Self::Usage(_) => 2,
        })
    }
}
