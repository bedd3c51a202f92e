//! Exit codes of the program, for scripts and service managers; `pepd --help` lists them.

use std::process::ExitCode;

/// The exit codes of `pepd`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitStatus {
    /// Success; after a signal, every flow ended by itself.
    Success = 0,
    /// Failure at run time, or output could not be written. The log has the cause.
    Runtime = 1,
    /// Invalid command line.
    Usage = 2,
    /// Invalid configuration, or one that this machine cannot provide. Every error was printed.
    Configuration = 3,
    /// Valid configuration that could not be applied: a capability, nft, a route, a kernel feature,
    /// file descriptors or address space are missing, or a port is in use.
    Setup = 4,
    /// After a signal or `pepd drain`, some flows exceeded the timeout and were reset.
    FlowsReset = 5,
    /// A second signal ended the drain at once.
    AtOnce = 6,
    /// A finding of `pepd check --strict` failed: flows are not accelerated, or do not work.
    Amiss = 7,
}

impl ExitStatus {
    /// Section of `--help` on exit codes.
    pub const HELP: &str = "\
Exit codes:
  0  success; after a stop signal or a drain, all flows finished and none was reset
  1  failure at run time, or output could not be written
  2  invalid command line
  3  invalid configuration (each error is printed with file, line and key)
  4  the configuration could not be applied: missing capability, nft or iptables, route, kernel
     feature, file descriptors or virtual memory, or a port in use
  5  some flows exceeded `timeouts.drain` (or the timeout of `pepd drain`) and were reset
  6  a repeated stop signal, a second or more after the first, ended pepd at once
  7  `pepd check --strict`: the configuration is valid, but a finding has the state `fail`";

    /// Returns the meaning of a code; [`Self::Runtime`] for codes that pepd does not use.
    pub fn from_code(code: i32) -> Self {
        let all = [
            Self::Success,
            Self::Runtime,
            Self::Usage,
            Self::Configuration,
            Self::Setup,
            Self::FlowsReset,
            Self::AtOnce,
            Self::Amiss,
        ];
        let known = all
            .into_iter()
            .find(|status| i32::from(status.code()) == code);
        known.unwrap_or(Self::Runtime)
    }

    /// Returns the numeric exit code.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> Self {
        Self::from(status.code())
    }
}
