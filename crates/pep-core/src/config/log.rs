//! `[log]`: what is written to standard error, and how.

use crate::reading::{Section, values::OneOf};

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// For people (default).
    #[default]
    Text,
    /// One JSON object per line, for programs.
    Json,
}

/// The least important lines that are still written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum LogLevel {
    /// Only what needs an operator now.
    Error,
    /// And what may need one.
    Warn,
    /// And a line for each flow that ends (default).
    #[default]
    Info,
    /// And why each flow did what it did.
    Debug,
    /// Everything.
    Trace,
}

/// `[log]`: what is written to standard error, and how. Options of the command line go before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogConfig {
    /// Default [`LogFormat::Text`].
    pub format: LogFormat,
    /// Default [`LogLevel::Info`]; `RUST_LOG` goes before it.
    pub level: LogLevel,
}

const FORMATS: OneOf<LogFormat> = OneOf(&[("text", LogFormat::Text), ("json", LogFormat::Json)]);
const LEVELS: OneOf<LogLevel> = OneOf(&[
    ("error", LogLevel::Error),
    ("warn", LogLevel::Warn),
    ("info", LogLevel::Info),
    ("debug", LogLevel::Debug),
    ("trace", LogLevel::Trace),
]);

impl LogConfig {
    pub(super) fn read(mut section: Section<'_>) -> Self {
        let log = Self {
            format: section.read("format", FORMATS).unwrap_or_default(),
            level: section.read("level", LEVELS).unwrap_or_default(),
        };
        section.finish();
        log
    }
}
