//! Command line of `pepd migrate`.

use std::path::PathBuf;

use clap::Args;

pub(super) const MIGRATE_EXAMPLES: &str = "\
Prints a configuration, with comments on settings that pepd lacks or that mean something else there.
Changes nothing. The input is PEPsal's command line, its settings files and the rules that redirect
connections to it. Unless files are named, /etc/default/pepsal, /etc/pepsal/pepsal.conf and
/etc/systemd/system/pepsal.service.d/pepsal.conf are read if they exist. With --config, the input
is a pepd configuration instead, in which obsolete key names are replaced.

Examples:
  iptables-save -t mangle > rules
  pepd migrate --rules rules --link sat0 --rate 2Mbit/s --rate-down 20Mbit/s --rtt 600ms > pepd.toml
  nft list ruleset | pepd migrate --rules - > pepd.toml
  pepd migrate --lan eth0 --command \"pepsal -d -p 5000 -C hybla\" > pepd.toml
  pepd check --config pepd.toml
  pepd migrate --config old.toml > pepd.toml             replace obsolete key names
";

/// Options of `pepd migrate`.
#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// pepd configuration in which to replace obsolete key names; `-` is standard input
    #[arg(long, short, value_name = "FILE", exclusive = true)]
    pub config: Option<PathBuf>,
    /// PEPsal's command line, as one argument
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub command: Option<String>,
    /// Settings file in the format of /etc/default/pepsal; may be repeated
    #[arg(long, value_name = "FILE")]
    pub settings: Vec<PathBuf>,
    /// Output of `iptables-save -t mangle` or `nft list ruleset` on a machine with PEPsal; `-` is
    /// standard input
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// Interface on which hosts' connections arrive, in addition to those in the rules; may be
    /// repeated
    #[arg(long, value_name = "NAME")]
    pub lan: Vec<String>,
    /// Interface of the link to accelerate. Connections that arrive on it get
    /// `link_leg = "client"`: their client is beyond the link
    #[arg(long, value_name = "NAME")]
    pub link: Option<String>,
    /// Rate from this machine into the link, such as 10Mbit/s
    #[arg(long, requires = "link")]
    pub rate: Option<String>,
    /// Rate from the link to this machine, such as 50Mbit/s
    #[arg(long, requires = "link")]
    pub rate_down: Option<String>,
    /// Round-trip time of the link, such as 600ms
    #[arg(long, requires = "link")]
    pub rtt: Option<String>,
}
