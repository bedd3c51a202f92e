//! How the program ends. Scripts and service managers read these codes; `pepd --help` lists them.

use std::process::ExitCode;

/// The exit codes of `pepd`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitStatus {
    /// All went well; after a signal, every flow ended by itself.
    Success = 0,
    /// Something failed while running, or output could not be written. The log says what.
    Runtime = 1,
    /// The command line was wrong.
    Usage = 2,
    /// The configuration was wrong, or asks for what this machine has not. Every error was printed.
    Configuration = 3,
    /// The configuration is right, but it could not be put in place: a capability, nft, a route, a feature of the kernel,
    /// or enough file descriptors or address space are missing, or a port is in use.
    Setup = 4,
    /// After a signal or `pepd drain`, some flows outlived their time and were reset.
    FlowsReset = 5,
    /// A second signal ended the draining at once.
    AtOnce = 6,
    /// Something keeps flows from being accelerated, or from working: a finding of `pepd check --strict` fails.
    Amiss = 7,
}

impl ExitStatus {
    /// What `--help` says of exit codes.
    pub const HELP: &str = "\
Exit codes:
  0  all went well; after a signal, every flow ended by itself
  1  something failed while running, or output could not be written
  2  the command line is wrong
  3  the configuration is wrong (each error is printed with file, line and key)
  4  it could not be put in place: a capability, nft, a route, a port, a kernel feature,
     file descriptors or address space
  5  some flows outlived `timeouts.drain` (or that of `pepd drain`) and were reset
  6  a second signal, a second or more after the first, ended everything at once
  7  `pepd check --strict`: the configuration is right, and something on this machine fails";

    /// What a code means; of one that is none of ours, that something failed.
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

    /// The code.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> Self {
        Self::from(status.code())
    }
}
