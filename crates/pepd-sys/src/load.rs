//! Loading a configuration file and reporting its errors.

use std::{
    fmt,
    fs::{File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    string::FromUtf8Error,
};

use pep_core::config::{self, Config, ConfigError, ConfigWarning};
use units::ByteSize;

use crate::cgroup;

/// The maximum length of a configuration: 4 KiB for each of the maximum number of sites.
const LENGTH_MAX: u64 = 4 << 20;

/// Paths of the example configuration: in the package, and in the source.
const EXAMPLE: &str = "an example is /usr/share/doc/pepd/config/pepd.example.toml (of the \
                       package), or config/pepd.example.toml (of the source); `--config FILE` \
                       names another file";

/// The text of a configuration and its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The path; absolute for a [loaded](Loaded) configuration.
    pub path: PathBuf,
    /// The text as read.
    pub text: String,
}

impl Source {
    /// Validates the text without looking at the machine.
    ///
    /// # Errors
    /// With all errors found.
    pub fn load_alone(self) -> Result<Loaded, LoadError> {
        let path = &self.path;
        let invalid = |errors| LoadError::Invalid(path.clone(), errors);
        let mut config = config::parse(&self.text).map_err(invalid)?;
        config.resolve_paths(path.parent().unwrap_or(Path::new("")));
        let path = std::path::absolute(path);
        let path = path.map_err(|err| LoadError::Unreadable(self.path, err))?;
        Ok(Loaded {
            warnings: config.warnings.clone(),
            config,
            source: Self {
                path,
                text: self.text,
            },
            notes: Vec::new(),
        })
    }

    /// Validates the text, and fits its limits to the memory that this process may have. All that
    /// run a configuration, or compare one with another that runs, use this.
    ///
    /// # Errors
    /// With all errors found, or when the process's cgroup is too small.
    pub fn load_fitted(self) -> Result<Loaded, LoadError> {
        let path = self.path.clone();
        let mut loaded = self.load_alone()?;
        if let Some(limit) = cgroup::memory_limit("self") {
            let fitted = loaded.config.fit_memory(limit);
            let warning = fitted.map_err(|error| LoadError::Invalid(path, vec![error]))?;
            loaded.warnings.extend(warning);
        }
        Ok(loaded)
    }
}

/// A valid configuration; the machine may still lack something that it names.
#[derive(Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// The text and its path.
    pub source: Source,
    /// Warnings, about the configuration itself and on this machine.
    pub warnings: Vec<ConfigWarning>,
    /// Warnings that `pepd run` logs itself when they apply.
    pub notes: Vec<ConfigWarning>,
}

/// The reason why a configuration cannot be used. Displayed, it is one line `FILE:LINE: KEY:
/// message` for each error.
#[derive(Debug)]
pub enum LoadError {
    /// The file cannot be read.
    Unreadable(PathBuf, io::Error),
    /// The file exceeds 4 MiB.
    TooLong(PathBuf),
    /// The content is invalid.
    Invalid(PathBuf, Vec<ConfigError>),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(path, err) => {
                write!(f, "{}: cannot be read: {err}", path.display())?;
                if self.is_missing() {
                    write!(f, "; {EXAMPLE}")?;
                }
                Ok(())
            }
            Self::TooLong(path) => write!(
                f,
                "{}: exceeds the maximum of {} for a configuration",
                path.display(),
                ByteSize(LENGTH_MAX)
            ),
            Self::Invalid(path, errors) => {
                let lines: Vec<_> = errors.iter().map(|error| located(path, error)).collect();
                f.write_str(&lines.join("\n"))
            }
        }
    }
}

impl std::error::Error for LoadError {}

impl LoadError {
    /// Returns true if the file does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Unreadable(_, err) if err.kind() == io::ErrorKind::NotFound)
    }
}

/// Formats `FILE:LINE: KEY: message`.
pub fn located(path: &Path, finding: &dyn fmt::Display) -> String {
    format!("{}:{finding}", path.display())
}

/// Reads a file.
///
/// # Errors
/// When the file cannot be read, or is no text.
pub fn read(path: &Path) -> Result<Source, LoadError> {
    let text = String::from_utf8(bytes(path)?)
        .map_err(|err| LoadError::Invalid(path.to_owned(), vec![not_text(&err)]))?;
    Ok(Source {
        path: path.to_owned(),
        text,
    })
}

/// Reads a file or a pipe, up to the maximum length.
fn bytes(path: &Path) -> Result<Vec<u8>, LoadError> {
    let unreadable = |err| LoadError::Unreadable(path.to_owned(), err);
    let file = open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(LENGTH_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if bytes.len() as u64 > LENGTH_MAX {
        return Err(LoadError::TooLong(path.to_owned()));
    }
    Ok(bytes)
}

/// Opens a file, or a pipe of the shell; other pipes may have no writer ever.
fn open(path: &Path) -> io::Result<File> {
    let is_given = ["/dev/fd/", "/dev/stdin", "/proc/self/fd/"]
        .iter()
        .any(|given| {
            path.as_os_str()
                .as_encoded_bytes()
                .starts_with(given.as_bytes())
        });
    if is_given {
        return File::open(path);
    }
    let mut options = OpenOptions::new();
    // Opening a pipe must not wait for a writer; the flag has no effect on files.
    options.read(true).custom_flags(libc::O_NONBLOCK);
    let file = options.open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_fifo() {
        return Err(io::Error::other(
            "it is a named pipe (FIFO), not a file; to read the output of a command use `--config /dev/stdin`",
        ));
    }
    Ok(file)
}

/// Returns the position where a file stops being text. The error's bytes are never empty: one of
/// them was wrong.
fn not_text(err: &FromUtf8Error) -> ConfigError {
    let valid = err.utf8_error().valid_up_to();
    let (before, after) = err.as_bytes().split_at(valid);
    let found = after.first().copied().unwrap_or_default();
    ConfigError {
        line: 1 + before.iter().filter(|byte| **byte == b'\n').count(),
        key: "(no key)".to_owned(),
        message: format!(
            "byte {found:#04x} is not UTF-8; a configuration is a text file (TOML) in UTF-8"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_reported_with_an_example() {
        let directory = tempfile::tempdir().unwrap();
        let err = read(&directory.path().join("pepd.toml")).unwrap_err();
        assert!(err.is_missing());
        assert!(err.to_string().contains("/pepd.example.toml"), "{err}");
        let err = read(directory.path()).unwrap_err();
        assert!(!err.is_missing());
        assert!(!err.to_string().contains("pepd.example.toml"), "{err}");
    }
}
