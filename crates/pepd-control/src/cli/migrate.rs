//! `pepd migrate`.

use std::path::PathBuf;

use clap::Args;

pub(super) const MIGRATE_EXAMPLES: &str = "\
Prints a configuration with remarks on what has no counterpart or another meaning. Changes nothing and asks nothing: what
PEPsal was told is given as its command line, its settings files (/etc/default/pepsal, /etc/pepsal/pepsal.conf and
/etc/systemd/system/pepsal.service.d/pepsal.conf are read where they are, unless others are named), and the rules that redirect
to it.

Examples:
  iptables-save -t mangle > rules
  pepd migrate --rules rules --link sat0 --rate 10Mbit/s --rtt 600ms > pepd.toml
  nft list ruleset | pepd migrate --rules - > pepd.toml
  pepd migrate --lan eth0 --command \"pepsal -d -p 5000 -C hybla\" > pepd.toml
  pepd check --config pepd.toml
  pepd migrate --config old.toml > pepd.toml             the present names of renamed keys
";

/// Options of `pepd migrate`.
#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// A pepd configuration with former key names: print it with the present ones; `-` is standard input
    #[arg(long, short, value_name = "FILE", exclusive = true)]
    pub config: Option<PathBuf>,
    /// PEPsal's command line, in one argument
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub command: Option<String>,
    /// Its settings, as /etc/default/pepsal has them; may be given more than once
    #[arg(long, value_name = "FILE")]
    pub settings: Vec<PathBuf>,
    /// What `iptables-save -t mangle` or `nft list ruleset` printed while it ran; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// An interface on which hosts' connections arrive, beside those that the rules name
    #[arg(long, value_name = "NAME")]
    pub lan: Vec<String>,
    /// The interface of the bad link. Connections that come in by it get `link_leg = "client"`
    #[arg(long, value_name = "NAME")]
    pub link: Option<String>,
    /// Its rate, such as 10Mbit/s
    #[arg(long, requires = "link")]
    pub rate: Option<String>,
    /// Its round-trip time, such as 600ms
    #[arg(long, requires = "link")]
    pub rtt: Option<String>,
}
