//! `pepd run`.

use clap::{Args, ValueEnum};
use pep_core::config::{LogConfig, LogFormat, LogLevel};

use super::ConfigArgs;

pub(super) const RUN_EXAMPLES: &str = "\
Runs in the foreground and logs to standard error. SIGTERM or SIGINT stops taking new
flows, waits `timeouts.drain` for those there are, and removes the rules; another signal
a second or more later ends at once. SIGUSR1 logs all counters. SIGHUP reloads (`pepd reload`). Flows outlive a crash: another process carries them on. SIGUSR2
hands them over to the program that is at the same place by then (an upgrade, or a new configuration), SIGQUIT ends pepd
and leaves them to the next `pepd run`, for a minute (`custody.survive`). Needs root, or CAP_NET_ADMIN, CAP_NET_RAW and
CAP_NET_BIND_SERVICE; for congestion controls of pepd's own also CAP_BPF and CAP_PERFMON.

Examples:
  pepd run --config pepd.toml
  pepd run --config pepd.toml --log-format json --log-level debug
  RUST_LOG=pepd_intercept=debug pepd run --config pepd.toml
";

/// Options of `pepd run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Where the configuration is.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Form of log lines; overrides `log.format`
    #[arg(long, value_enum)]
    pub log_format: Option<FormatArg>,
    /// Least important lines to log; overrides RUST_LOG and `log.level`
    #[arg(long, value_enum)]
    pub log_level: Option<LevelArg>,
    /// This is the process that carries flows; `pepd run` starts it
    #[arg(long, hide = true)]
    pub worker: bool,
    /// There was one before, which has ended unasked
    #[arg(long, hide = true, requires = "worker")]
    pub again: bool,
    /// Reset the flows of the process before instead of taking them over
    #[arg(long, hide = true, requires = "worker")]
    pub discard_flows: bool,
    /// Where to give signs of life: the number of a pipe
    #[arg(long, hide = true, requires = "worker")]
    pub heartbeat: Option<i32>,
    /// How many processes before did not go on
    #[arg(long, hide = true, requires = "worker", default_value_t = 0)]
    pub hangs: u64,
    /// A newer configuration could not be put in place
    #[arg(long, hide = true, requires = "worker")]
    pub reverted: bool,
    /// What was read from the file, which may have changed: the number of a descriptor
    #[arg(long, hide = true)]
    pub text: Option<i32>,
    /// What to go back to should that not come up: the number of a descriptor
    #[arg(long, hide = true, requires = "text")]
    pub before: Option<i32>,
}

impl RunArgs {
    /// How to log, given what the configuration says.
    pub fn log(&self, config: LogConfig) -> LogConfig {
        LogConfig {
            format: self.log_format.map_or(config.format, FormatArg::into),
            level: self.log_level.map_or(config.level, LevelArg::into),
        }
    }
}

/// A log format, as an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FormatArg {
    /// For people
    Text,
    /// One object per line, for programs
    Json,
}

impl From<FormatArg> for LogFormat {
    fn from(format: FormatArg) -> Self {
        match format {
            FormatArg::Text => Self::Text,
            FormatArg::Json => Self::Json,
        }
    }
}

/// A log level, as an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LevelArg {
    /// Only what needs an operator now
    Error,
    /// And what may need one
    Warn,
    /// And a line for each flow that ends
    Info,
    /// And why each flow did what it did
    Debug,
    /// Everything
    Trace,
}

impl From<LevelArg> for LogLevel {
    fn from(level: LevelArg) -> Self {
        match level {
            LevelArg::Error => Self::Error,
            LevelArg::Warn => Self::Warn,
            LevelArg::Info => Self::Info,
            LevelArg::Debug => Self::Debug,
            LevelArg::Trace => Self::Trace,
        }
    }
}
