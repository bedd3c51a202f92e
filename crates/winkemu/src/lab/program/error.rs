use std::{io, path::PathBuf, process::ExitStatus, time::Duration};

use crate::netns::NetnsError;

/// Why a program did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// Install the package.
    #[error("`{program}` is not installed: `apt-get install {package}`")]
    NotInstalled {
        /// The program.
        program: String,
        /// The Debian package that has it.
        package: String,
    },
    /// The program exists but does not start.
    #[error("cannot start `{program}`: {source}")]
    Start {
        /// The program.
        program: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It ended before it had done its work; its last words are in `log`.
    #[error("`{program}` ended early ({status}): {log}")]
    Ended {
        /// The program.
        program: String,
        /// How it ended.
        status: ExitStatus,
        /// The end of what it wrote.
        log: String,
    },
    /// It took longer than the scenario allows.
    #[error("`{program}` did not {what} within {after:?}")]
    Timeout {
        /// The program.
        program: String,
        /// What it was to do.
        what: &'static str,
        /// How long it had.
        after: Duration,
    },
    /// It wrote what cannot be understood, or a transfer was incomplete.
    #[error("`{program}`: {what}")]
    Output {
        /// The program.
        program: String,
        /// What is wrong with it.
        what: String,
    },
    /// A file the program needs cannot be written.
    #[error("cannot write {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A socket of the built-in programs failed.
    #[error("cannot {what}: {source}")]
    Socket {
        /// The operation.
        what: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The namespace refused.
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

/// Writes a file a program needs.
pub(super) fn write_file(path: PathBuf, text: &str) -> Result<PathBuf, ProgramError> {
    match std::fs::write(&path, text) {
        Ok(()) => Ok(path),
        Err(source) => Err(ProgramError::File { path, source }),
    }
}
