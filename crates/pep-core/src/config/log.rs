//! `[log]`: what is written to standard error, and how.

use crate::reading::{section, values::OneOf};

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line, for programs.
    Json,
}

/// The least important lines that are still written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Only what needs an operator now.
    Error,
    /// And what may need one.
    Warn,
    /// And a line for each flow that ends.
    Info,
    /// And why each flow did what it did.
    Debug,
    /// Everything.
    Trace,
}

section! {
    /// `[log]`: what is written to standard error, and how. Options of the command line go before.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct LogConfig(s) {
        /// The form of lines.
        format: LogFormat = FORMATS, LogFormat::Text;
        /// The least important lines that are written; `RUST_LOG` goes before it.
        level: LogLevel = LEVELS, LogLevel::Info;
    }
}

const FORMATS: OneOf<LogFormat> = OneOf(&[("text", LogFormat::Text), ("json", LogFormat::Json)]);
const LEVELS: OneOf<LogLevel> = OneOf(&[
    ("error", LogLevel::Error),
    ("warn", LogLevel::Warn),
    ("info", LogLevel::Info),
    ("debug", LogLevel::Debug),
    ("trace", LogLevel::Trace),
]);
