//! Command lines of `pepd check`, `pepd cleanup` and `pepd rules`.

use std::time::Duration;

use clap::{Args, ValueEnum};
use pepd_intercept::Format;

use super::ConfigArgs;

pub(super) const CHECK_EXAMPLES: &str = "\
Checks a configuration. If it is invalid, prints every error as FILE:LINE: KEY: message and exits
with 3. Otherwise prints findings and the effective configuration, and exits with 0. Changes
nothing; needs no privileges.

Findings cover this machine and the pepd that runs with this configuration, if any: capabilities,
interfaces, MTU, routes, kernel settings, limits, installed rules, interception, and the return
path of hosts and servers. Each is fail, warn, unknown (not visible to this user), info or ok, the
worst first, with a remedy. Findings do not change the exit code, unless --strict is given.
docs/operating.md lists them.

Unless --no-kernel is given, the configuration is also compared with this machine. It is an error if
no congestion control of a list is available, and a warning if an interface is missing. A missing
capability is `fail` if the running pepd or root lacks it, `unknown` for another user.

Examples:
  sudo pepd check                                     all findings, and the configuration
  sudo pepd check --quiet                             findings other than ok
  sudo pepd check --watch 10s                         count connections that arrive within 10 s
  sudo pepd check --strict --json | jq '.findings[] | select(.state == \"fail\")'
  pepd check --config pepd.toml && systemctl restart pepd
  pepd check --config ship.toml --no-kernel           for another machine
";

pub(super) const CLEANUP_EXAMPLES: &str = "\
Removes the rules (nft or iptables), policy rules, routes and socket of a killed pepd that is not to be started
again (the next `pepd run` would replace them). While pepd runs, or flows wait for the next
`pepd run` (for a minute), removes nothing and exits with 0. If the configuration file is missing,
uses the defaults and prints a note. The systemd unit runs it after pepd has ended. Rules of sites
with clear = \"never\" stay, so that nothing leaves in the clear; --lift removes them, and nothing else.

Examples:
  pepd cleanup                         as configured in /etc/pepd/pepd.toml
  pepd cleanup --config pepd.toml
  pepd cleanup --lift                  packets of sites with clear = \"never\" may leave again
";

pub(super) const RULES_EXAMPLES: &str = "\
Prints the packet filter rules and routes of a configuration. Changes nothing, needs no privileges
and does not query this machine. `pepd run` installs and removes those of nft or of iptables, or none
of them (`intercept.rules`); docs/interception.md explains them.

Examples:
  pepd rules --config pepd.toml                       the nft table, with ip commands as comments
  pepd rules --config pepd.toml --format iptables     a script of iptables
";

/// Options of `pepd check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Configuration file.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Compare nothing with this machine and print no findings, for another machine's configuration
    #[arg(long)]
    pub no_kernel: bool,
    /// Print no findings; still compare congestion controls and interfaces with this machine
    #[arg(long)]
    pub config_only: bool,
    /// Print only findings other than ok, and no configuration
    #[arg(short, long)]
    pub quiet: bool,
    /// Exit with 7 if a finding has the state `fail`
    #[arg(long)]
    pub strict: bool,
    /// Count connections for this time, instead of since pepd started
    #[arg(long, value_name = "TIME", value_parser = units::duration::parse)]
    pub watch: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Descriptor of the text read from the file, which may have changed since
    #[arg(long, hide = true)]
    pub text: Option<i32>,
}

impl CheckArgs {
    /// Returns true if the machine is examined. A process that hands over its configuration only
    /// asks whether that is valid.
    pub fn looks(&self) -> bool {
        !self.no_kernel && !self.config_only && self.text.is_none()
    }
}

/// Options of `pepd cleanup`.
#[derive(Debug, Args)]
pub struct CleanupArgs {
    /// Configuration file.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Remove only the rules of sites with `clear = "never"`, which otherwise stay
    #[arg(long)]
    pub lift: bool,
}

/// Options of `pepd rules`.
#[derive(Debug, Args)]
pub struct RulesArgs {
    /// Configuration file.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    pub format: RulesFormat,
}

/// Output format of rules.
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
