//! Logs: to standard error, for people or for programs.

use std::{env, io::IsTerminal};

use pep_core::config::{LogConfig, LogFormat, LogLevel};
use tracing_subscriber::{EnvFilter, fmt, prelude::*};

/// Starts logging, once per process. `RUST_LOG`, where it is set and `forced` is not, decides
/// what is logged instead of the level.
pub fn init(log: LogConfig, forced: bool) {
    let (filter, problem) = filter(log.level, forced);
    let registry = tracing_subscriber::registry().with(filter);
    let lines = fmt::layer().with_writer(std::io::stderr);
    match log.format {
        LogFormat::Json => registry
            .with(lines.json().flatten_event(true).with_span_list(false))
            .init(),
        LogFormat::Text => registry
            .with(
                lines
                    .compact()
                    .with_target(false)
                    .with_ansi(std::io::stderr().is_terminal()),
            )
            .init(),
    }
    if let Some(problem) = problem {
        tracing::warn!(error = %problem, "RUST_LOG is not understood and has no effect");
    }
}

/// The filter, and what is wrong with `RUST_LOG`.
fn filter(level: LogLevel, forced: bool) -> (EnvFilter, Option<String>) {
    let own = || EnvFilter::new(directives(level));
    match env::var(EnvFilter::DEFAULT_ENV) {
        Ok(text) if !forced && !text.trim().is_empty() => match EnvFilter::try_new(&text) {
            Ok(filter) => (filter, None),
            Err(err) => (own(), Some(err.to_string())),
        },
        _ => (own(), None),
    }
}

/// Our own lines from the level upwards; of the libraries no more than warnings, since netlink
/// at `debug` drowns everything else.
fn directives(level: LogLevel) -> String {
    let level = match level {
        LogLevel::Error => return "error".to_owned(),
        LogLevel::Warn => return "warn".to_owned(),
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
        LogLevel::Trace => "trace",
    };
    format!("warn,pepd={level},pep_core={level}")
}
