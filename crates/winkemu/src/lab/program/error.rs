use std::{io, path::PathBuf, process::ExitStatus, time::Duration};

use crate::netns::NetnsError;

/// Failure of a program.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// Program that is not installed.
    #[error("`{program}` is not installed: `apt-get install {package}`")]
    NotInstalled {
        /// Program.
        program: String,
        /// Debian package that contains it.
        package: String,
    },
    /// Program that exists but does not start.
    #[error("cannot start `{program}`: {source}")]
    Start {
        /// Program.
        program: String,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// Program that ended early; the end of its output is in `log`.
    #[error("`{program}` ended early ({status}): {log}")]
    Ended {
        /// Program.
        program: String,
        /// Exit status.
        status: ExitStatus,
        /// End of its output.
        log: String,
    },
    /// Program that took longer than the scenario allows.
    #[error("`{program}` did not {what} within {after:?}")]
    Timeout {
        /// Program.
        program: String,
        /// Action that it did not complete.
        what: &'static str,
        /// Time limit.
        after: Duration,
    },
    /// Invalid output, or an incomplete transfer.
    #[error("`{program}`: {what}")]
    Output {
        /// Program.
        program: String,
        /// Error in its output.
        what: String,
    },
    /// File that cannot be written.
    #[error("cannot write {path}: {source}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// Failed socket operation of a built-in program.
    #[error("cannot {what}: {source}")]
    Socket {
        /// Operation.
        what: String,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// Failed namespace operation.
    #[error(transparent)]
    Netns(#[from] NetnsError),
}

impl ProgramError {
    pub(super) fn start(program: &str, package: &str, source: io::Error) -> Self {
        let (program, package) = (program.to_owned(), package.to_owned());
        match source.kind() {
            io::ErrorKind::NotFound => Self::NotInstalled { program, package },
            _ => Self::Start { program, source },
        }
    }

    pub(super) fn output(program: &str, what: impl Into<String>) -> Self {
        Self::Output {
            program: program.to_owned(),
            what: what.into(),
        }
    }

    pub(super) fn socket(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Socket { what, source }
    }
}

/// Writes a file that a program needs.
pub(super) fn write_file(path: PathBuf, text: &str) -> Result<PathBuf, ProgramError> {
    match std::fs::write(&path, text) {
        Ok(()) => Ok(path),
        Err(source) => Err(ProgramError::File { path, source }),
    }
}
