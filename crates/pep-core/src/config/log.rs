//! `[log]`: what is written to standard error, and how.

use crate::reading::{section, words};

words! {
    /// The form of log lines.
    pub enum LogFormat {
        /// For people.
        Text = "text",
        /// One JSON object per line, for programs.
        Json = "json",
    }
}

words! {
    /// The least important lines that are still written.
    #[derive(PartialOrd, Ord)]
    pub enum LogLevel {
        /// Only what needs an operator now.
        Error = "error",
        /// And what may need one.
        Warn = "warn",
        /// And a line for each flow that ends.
        Info = "info",
        /// And why each flow did what it did.
        Debug = "debug",
        /// Everything.
        Trace = "trace",
    }
}

section! {
    /// `[log]`: what is written to standard error, and how. Options of the command line go before.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct LogConfig(s) {
        /// The form of lines.
        format: LogFormat = LogFormat::WORDS, LogFormat::Text;
        /// The least important lines that are written; `RUST_LOG` goes before it.
        level: LogLevel = LogLevel::WORDS, LogLevel::Info;
    }
}
