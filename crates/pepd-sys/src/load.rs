//! Reading a configuration file, and telling what is wrong with it.

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

/// No configuration is longer: 4 KiB for each of as many sites as there may be.
const LENGTH_MAX: u64 = 4 << 20;

/// Places where operators find an example: in the package, and in the source.
const EXAMPLE: &str = "an example is /usr/share/doc/pepd/config/pepd.example.toml (of the \
                       package), or config/pepd.example.toml (of the source); `--config FILE` \
                       names another file";

/// What a configuration was made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Where it was read; of what was [loaded](Loaded) from the root on.
    pub path: PathBuf,
    /// As it was read.
    pub text: String,
}

impl Source {
    /// Checks it in itself only.
    ///
    /// # Errors
    /// With everything that is wrong with it.
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
}

/// A configuration that is valid, in itself at least.
#[derive(Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// What it was made of.
    pub source: Source,
    /// What is doubtful about it, in itself and here.
    pub warnings: Vec<ConfigWarning>,
    /// What `pepd run` says itself when it comes to it.
    pub notes: Vec<ConfigWarning>,
}

/// Why a configuration cannot be used. Displayed, it is one line `FILE:LINE: KEY: message` for
/// each error.
#[derive(Debug)]
pub enum LoadError {
    /// The file cannot be read.
    Unreadable(PathBuf, io::Error),
    /// It is longer than 4 MiB.
    TooLong(PathBuf),
    /// Its content is wrong.
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
                "{}: is longer than {}; no configuration needs as much",
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
    /// True where there is no such file.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Unreadable(_, err) if err.kind() == io::ErrorKind::NotFound)
    }
}

/// `FILE:LINE: KEY: message`.
pub fn located(path: &Path, finding: &dyn fmt::Display) -> String {
    format!("{}:{finding}", path.display())
}

/// Reads a file.
///
/// # Errors
/// When it cannot be read, or is no text.
pub fn read(path: &Path) -> Result<Source, LoadError> {
    let text = String::from_utf8(bytes(path)?)
        .map_err(|err| LoadError::Invalid(path.to_owned(), vec![not_text(&err)]))?;
    Ok(Source {
        path: path.to_owned(),
        text,
    })
}

/// The bytes of a file or a pipe, up to as many as a configuration may have.
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

/// Opens a file, or the pipe that a shell gave: another one may have nobody who ever writes to it.
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
    // It must not wait for a writer, should it be a pipe; of a file it is without effect.
    options.read(true).custom_flags(libc::O_NONBLOCK);
    let file = options.open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_fifo() {
        return Err(io::Error::other(
            "it is a named pipe (FIFO), and a configuration is a file; to read what a command prints: `--config /dev/stdin`",
        ));
    }
    Ok(file)
}

/// Where a file stops being text. The error's bytes are never empty: one of them was wrong.
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
    fn a_file_that_is_missing_is_told_with_an_example() {
        let folder = tempfile::tempdir().unwrap();
        let err = read(&folder.path().join("pepd.toml")).unwrap_err();
        assert!(err.is_missing());
        assert!(err.to_string().contains("/pepd.example.toml"), "{err}");
        let err = read(folder.path()).unwrap_err();
        assert!(!err.is_missing());
        assert!(!err.to_string().contains("pepd.example.toml"), "{err}");
    }
}
