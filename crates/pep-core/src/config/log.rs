//! `[log]`: what is written to standard error, and how.

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
