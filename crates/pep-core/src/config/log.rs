//! `[log]`: destination, form and level of log lines.

use crate::reading::{section, words};

words! {
    /// Form of log lines.
    pub enum LogFormat {
        /// For people.
        Text = "text",
        /// One JSON object per line, for programs.
        Json = "json",
    }
}

words! {
    /// Minimum severity of log lines.
    #[derive(PartialOrd, Ord)]
    pub enum LogLevel {
        /// Faults that need an operator now.
        Error = "error",
        /// Also faults that may need an operator.
        Warn = "warn",
        /// Also a line for each flow that ends.
        Info = "info",
        /// Also the reasons for pepd's decisions about each flow.
        Debug = "debug",
        /// Everything.
        Trace = "trace",
    }
}

section! {
    /// `[log]`: log lines on standard error. Command-line options take precedence.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct LogConfig(s) {
        /// Form of log lines.
        format: LogFormat = LogFormat::WORDS, LogFormat::Text;
        /// Minimum severity of log lines; `RUST_LOG` takes precedence.
        level: LogLevel = LogLevel::WORDS, LogLevel::Info;
    }
}
