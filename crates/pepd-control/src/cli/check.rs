//! `pepd check` and `pepd rules`: what a configuration comes to, without running it.

use std::time::Duration;

use clap::{Args, ValueEnum};
use pepd_intercept::Format;

use super::ConfigArgs;

pub(super) const CHECK_EXAMPLES: &str = "\
Prints findings on this machine, then the sites and what each comes to, and exits 0; or prints every error as
FILE:LINE: KEY: message and exits 3. Compares with this machine, unless --no-kernel is given: a
list of congestion controls of which none can be had is an error, a missing interface a warning. A
missing capability is `fail` for pepd or root, `unknown` for another user. Changes nothing; needs
no privileges.

It looks at this machine, and asks the pepd that runs with this configuration, where one does: capabilities, interfaces, MTU,
routes, settings of the kernel, limits; its rules, whether connections arrive and are intercepted, whether what hosts and servers
answer comes back this way. Each finding is fail, warn, unknown where this user may not see it, info or ok, with what to do, the worst first. As the
configuration is right all the same, the exit code stays 0, unless --strict is given. docs/operating.md lists the findings.

Examples:
  sudo pepd check                                     what is amiss?
  sudo pepd check --quiet                             only what is not as it should be
  sudo pepd check --watch 10s                         the same, of what comes in now
  sudo pepd check --strict --json | jq '.findings[] | select(.state == \"fail\")'
  pepd check --config pepd.toml && systemctl restart pepd
  pepd check --config ship.toml --no-kernel           for another machine
";

pub(super) const CLEANUP_EXAMPLES: &str = "\
Removes the nft table, policy rules, routes and socket of `pepd run`, where no process uses them any more: pepd was killed, with all of
its processes, and is not to be started again (the next `pepd run` replaces them anyway). While pepd runs, or a process keeps flows for the next
one, nothing is removed, and the exit code is 0 as well. Where the configuration is gone, the defaults are used, with a note.
The unit for systemd calls it when pepd has ended, however it did.

Examples:
  pepd cleanup                         what /etc/pepd/pepd.toml names
  pepd cleanup --config pepd.toml
";

pub(super) const RULES_EXAMPLES: &str = "\
Changes nothing, needs no privileges and does not ask what this machine can do. pepd run installs the same by itself, in its own nft
table, and removes it at its end; docs/interception.md explains it.

Examples:
  pepd rules --config pepd.toml                       the nft table, with ip commands as comments
  pepd rules --config pepd.toml --format iptables     the nearest that iptables can do
";

/// Options of `pepd check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Where the configuration is.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Do not compare with this machine: the file is meant for another
    #[arg(long)]
    pub no_kernel: bool,
    /// Check only the configuration
    #[arg(long)]
    pub config_only: bool,
    /// Only what is not as it should be: neither findings that are ok nor the configuration
    #[arg(short, long)]
    pub quiet: bool,
    /// Exit with 7 where a finding fails
    #[arg(long)]
    pub strict: bool,
    /// Count what comes in within this time, and not since pepd began
    #[arg(long, value_name = "TIME", value_parser = units::duration::parse)]
    pub watch: Option<Duration>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
    /// What was read from the file, which may have changed: the number of a descriptor
    #[arg(long, hide = true)]
    pub text: Option<i32>,
}

impl CheckArgs {
    /// Whether it looks at the machine. Who hands over what it has read wants to know whether that is right, and soon.
    pub fn looks(&self) -> bool {
        !self.no_kernel && !self.config_only && self.text.is_none()
    }
}

/// Options of `pepd cleanup`.
#[derive(Debug, Args)]
pub struct CleanupArgs {
    /// Where the configuration is.
    #[command(flatten)]
    pub config: ConfigArgs,
}

/// Options of `pepd rules`.
#[derive(Debug, Args)]
pub struct RulesArgs {
    /// Where the configuration is.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    pub format: RulesFormat,
}

/// For which tool rules are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum RulesFormat {
    /// For `nft -f -`
    #[default]
    Nft,
    /// Commands of iptables and ip6tables
    Iptables,
}

impl From<RulesFormat> for Format {
    fn from(format: RulesFormat) -> Self {
        match format {
            RulesFormat::Nft => Self::Nft,
            RulesFormat::Iptables => Self::Iptables,
        }
    }
}
