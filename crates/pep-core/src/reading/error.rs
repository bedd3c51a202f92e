//! What is wrong, or doubtful, in a configuration, and where.

/// One error in a configuration. All errors of a file are reported together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{line}: {key}: {message}")]
pub struct ConfigError {
    /// The line, counted from 1.
    pub line: usize,
    /// The dotted key, with entries of lists counted from 1: `site[2].match.dport[1]`. A
    /// guess where the text is not TOML.
    pub key: String,
    /// What is wrong, and what would be accepted.
    pub message: String,
}

/// Something in a configuration which is allowed but can hardly be meant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{line}: {key}: {message}")]
pub struct ConfigWarning {
    /// The line, counted from 1.
    pub line: usize,
    /// The dotted key, as in [`ConfigError::key`].
    pub key: String,
    /// What is doubtful, and what to do about it.
    pub message: String,
}
