//! Errors and warnings of a configuration, with their location.

/// One error in a configuration. All errors of a file are reported together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{line}: {key}: {message}")]
pub struct ConfigError {
    /// The line, counted from 1.
    pub line: usize,
    /// Dotted key, with list items counted from 1: `site[2].match.dport[1]`. A guess where the text
    /// is not TOML.
    pub key: String,
    /// Description of the error, and the accepted values.
    pub message: String,
}

/// A value that is accepted but is probably a mistake.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{line}: {key}: {message}")]
pub struct ConfigWarning {
    /// The line, counted from 1.
    pub line: usize,
    /// The dotted key, as in [`ConfigError::key`].
    pub key: String,
    /// Description of the doubt, and its remedy.
    pub message: String,
}
