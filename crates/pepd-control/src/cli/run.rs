//! Command line of `pepd run`.

use clap::{Args, ValueEnum};
use pep_core::config::{LogConfig, LogFormat, LogLevel};

use super::ConfigArgs;

pub(super) const RUN_EXAMPLES: &str = "\
Runs in the foreground and logs to standard error. Needs root, or CAP_NET_ADMIN, CAP_NET_RAW and
CAP_NET_BIND_SERVICE; for its own congestion controls also CAP_BPF and CAP_PERFMON. After a crash
another process continues the flows. The environment variable RUST_LOG sets log levels by part of
the program: pepd, pepd_intercept, pepd_relay, pepd_tunnel, pepd_sys.

Signals:
  SIGTERM, SIGINT    accept no new flows, wait `timeouts.drain` for open ones, remove the rules,
                     exit; if repeated a second or more later, exit at once
  SIGHUP             check and apply the changed configuration (`pepd reload`)
  SIGUSR1            log all counters
  SIGUSR2            hand the flows over to the pepd that is installed now (upgrade)
  SIGQUIT            exit, but keep the flows for the next `pepd run`; reset them after a minute
                     (needs `custody.survive`)

Examples:
  pepd run --config pepd.toml
  pepd run --config pepd.toml --log-format json --log-level debug
  RUST_LOG=pepd_intercept=debug pepd run --config pepd.toml
";

/// Options of `pepd run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Configuration file.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Format of log lines; overrides `log.format`
    #[arg(long, value_enum)]
    pub log_format: Option<FormatArg>,
    /// Lowest level to log; overrides RUST_LOG and `log.level`
    #[arg(long, value_enum)]
    pub log_level: Option<LevelArg>,
    /// Carry flows, as a child of `pepd run`
    #[arg(long, hide = true)]
    pub worker: bool,
    /// Run programs for the process that sends orders by standard input
    #[arg(long, hide = true)]
    pub runner: bool,
    /// Follow a process that ended unexpectedly
    #[arg(long, hide = true, requires = "worker")]
    pub again: bool,
    /// Reset the flows of the previous process instead of taking them over
    #[arg(long, hide = true, requires = "worker")]
    pub discard_flows: bool,
    /// Descriptor of the pipe for heartbeats
    // A supervisor of the release before passes the former name in an upgrade.
    #[arg(long, alias = "pulse", hide = true, requires = "worker")]
    pub heartbeat: Option<i32>,
    /// Number of previous processes that hung
    #[arg(long, hide = true, requires = "worker", default_value_t = 0)]
    pub hangs: u64,
    /// A newer configuration failed to start
    #[arg(long, hide = true, requires = "worker")]
    pub reverted: bool,
    /// Descriptor of the text read from the file, which may have changed since
    #[arg(long, hide = true)]
    pub text: Option<i32>,
    /// Descriptor of the configuration to revert to if this one fails to start
    #[arg(long, hide = true, requires = "text")]
    pub before: Option<i32>,
}

impl RunArgs {
    /// Returns the effective log settings.
    pub fn log(&self, config: LogConfig) -> LogConfig {
        LogConfig {
            format: self.log_format.map_or(config.format, FormatArg::into),
            level: self.log_level.map_or(config.level, LevelArg::into),
        }
    }
}

/// Log format, as an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FormatArg {
    /// Text
    Text,
    /// One JSON object per line
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

/// Log level, as an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LevelArg {
    /// Errors that need an operator
    Error,
    /// Also conditions that may need an operator
    Warn,
    /// Also a line for each flow that ends
    Info,
    /// Also the reasons for decisions about flows
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
