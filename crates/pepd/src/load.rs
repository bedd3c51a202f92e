//! Reading a configuration file, and telling what is wrong with it.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use pep_core::config::{self, Config, ConfigError, ConfigWarning};

use crate::kernel;

/// A configuration that is valid on this machine.
#[derive(Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// What is doubtful about it, in itself and here.
    pub warnings: Vec<ConfigWarning>,
}

/// Why a configuration cannot be used. Displayed, it is one line `FILE:LINE: KEY: message` for
/// each error.
#[derive(Debug)]
pub enum LoadError {
    /// The file cannot be read.
    Unreadable(PathBuf, io::Error),
    /// Its content is wrong.
    Invalid(PathBuf, Vec<ConfigError>),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(path, err) => write!(f, "{}: cannot be read: {err}", path.display()),
            Self::Invalid(path, errors) => {
                let lines: Vec<_> = errors.iter().map(|error| located(path, error)).collect();
                f.write_str(&lines.join("\n"))
            }
        }
    }
}

impl std::error::Error for LoadError {}

/// `FILE:LINE: KEY: message`.
pub fn located(path: &Path, finding: &dyn fmt::Display) -> String {
    format!("{}:{finding}", path.display())
}

/// Reads a file and checks it, in itself and against this machine.
///
/// # Errors
/// When it cannot be read, or with everything that is wrong with it.
pub fn load(path: &Path) -> Result<Loaded, LoadError> {
    let config = parse(path)?;
    let findings = kernel::check(&config);
    if !findings.errors.is_empty() {
        return Err(LoadError::Invalid(path.to_owned(), findings.errors));
    }
    let mut warnings = config.warnings.clone();
    warnings.extend(findings.warnings);
    Ok(Loaded { config, warnings })
}

/// Reads a file and checks it in itself only.
///
/// # Errors
/// As [`load`].
pub fn parse(path: &Path) -> Result<Config, LoadError> {
    let text = fs::read_to_string(path);
    let text = text.map_err(|err| LoadError::Unreadable(path.to_owned(), err))?;
    config::parse(&text).map_err(|errors| LoadError::Invalid(path.to_owned(), errors))
}
