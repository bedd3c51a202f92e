//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use pep_core::config::{LogConfig, LogFormat, LogLevel};

use crate::{admin::OrderedState, exit::ExitStatus, intercept::Format};

const EXAMPLES: &str = "\
Examples:
  pepd check --config /etc/pepd/pepd.toml     is the file right, and what does it come to?
  pepd rules --config /etc/pepd/pepd.toml     what would be installed in the kernel?
  pepd run --config /etc/pepd/pepd.toml       accelerate, until SIGTERM
  pepd cc list                                which congestion controls are there?
  pepd link down --for 5min                   the link will be away
  pepd status                                 how it is: link, sites, peers, what is used of the limits
  pepd custody                                what is held for hosts
  pepd keygen                                 a key, by which peers of tunnels know this pepd

The smallest configuration:
  [intercept]
  lan = [\"eth0\"]            # interfaces on which hosts' connections arrive
";

const RUN_EXAMPLES: &str = "\
Runs in the foreground and logs to standard error. SIGTERM or SIGINT stops taking new
flows, waits `timeouts.drain` for those there are, and removes the rules; a second signal
ends at once. SIGUSR1 logs all counters. SIGHUP reloads (`pepd reload`). Flows outlive a crash: another process carries them on. SIGUSR2
hands them over to the program that is at the same place by then (an upgrade, or a new configuration), SIGQUIT ends pepd
and leaves them to the next `pepd run`, for a minute (`custody.survive`). Needs root, or CAP_NET_ADMIN, CAP_NET_RAW and
CAP_NET_BIND_SERVICE; for congestion controls of pepd's own also CAP_BPF and CAP_PERFMON.

Examples:
  pepd run --config pepd.toml
  pepd run --config pepd.toml --log-format json --log-level debug
  RUST_LOG=pepd::intercept=debug pepd run --config pepd.toml
";

const CHECK_EXAMPLES: &str = "\
Prints the sites and what each comes to, then exits 0; or prints every error as
FILE:LINE: KEY: message and exits 3. Compares with this machine too, unless --no-kernel is given: a
list of congestion controls of which none can be had is an error, an interface that is missing a warning,
a privilege that this process lacks, and pepd run will need, a note. Loads nothing; needs no privileges.

Examples:
  pepd check --config pepd.toml && systemctl restart pepd
  pepd check --config ship.toml --no-kernel           for another machine
";

const RULES_EXAMPLES: &str = "\
Changes nothing, needs no privileges and does not ask what this machine can do. pepd run installs the same by itself, in its own nft
table, and removes it at its end; docs/interception.md explains it.

Examples:
  pepd rules --config pepd.toml                       the nft table, with ip commands as comments
  pepd rules --config pepd.toml --format iptables     the nearest that iptables can do
";

const CC_EXAMPLES: &str = "\
Examples:
  pepd cc list             those of the kernel, those that pepd can load, and why others are missing
  pepd cc list --json      the same for programs
";

const CC_LIST_EXAMPLES: &str = "\
Where they are from:
  kernel             the kernel has it
  kernel module      the kernel loads it when a site names it
  eBPF               pepd loads it when a site names it
  eBPF, name taken   the same, under another name: another process has this one
  another's eBPF     a program of another process; gone with that
  missing            pepd's own, which cannot be loaded here; the reason stands below the table

Changes nothing. Without CAP_BPF and CAP_PERFMON pepd's own show as missing.

Examples:
  pepd cc list
  pepd cc list --json | jq -r '.[] | select(.kind == \"missing\") | .name + \": \" + .why'
";

const KEYGEN_EXAMPLES: &str = "\
The private key stays in its file, which only its owner may read: `identity.key_file` names it. The public key,
printed as one line, goes into the peer's configuration as `public_key`. Keys are 32 bytes in base64,
as WireGuard's are. A key that two peers share (`psk_file`, optional) has to reach both in a way that nobody reads.

Examples:
  pepd keygen --out /etc/pepd/pepd.key           a key pair; prints the public key
  pepd keygen --public /etc/pepd/pepd.key        the public key of one there is
  pepd keygen --psk /etc/pepd/hub.psk            a key for two peers to share
";

const LINK_EXAMPLES: &str = "\
Says how the link is, or is told by one who knows: an operator's word goes before all else that pepd can find out, until
it ends or another is given. While the link is down, new flows go as their site's `while_down` says, and tunnels stop
sending. Talks to the running pepd through its admin socket, which `admin.socket` of the configuration names.

Examples:
  pepd link status                     how it is, who says so, the last outages
  pepd link down --for 5min            it will be away: a pass ends, a dish is moved
  pepd link up                         it is there, whatever else says otherwise
  pepd link auto                       pepd knows best again
  pepd link status --json | jq .up
";

const STATUS_EXAMPLES: &str = "\
Says how a running pepd is: the link and its outages; flows, rates and what is held, by site; peers with round trip, rate,
loss and overcode; what is used of the limits. Rates are means of the last five seconds, what is held is at most ten
seconds old, counts are since the process that carries flows began. docs/operating.md says what each means.

Examples:
  pepd status
  pepd status --json | jq '.sites[] | {name, flows_open, up_rate, down_rate}'
  watch pepd status
";

const CUSTODY_EXAMPLES: &str = "\
Lists what is held: bytes that a host was told have arrived, and that the other end has not acknowledged yet. Memory
is pepd's own; what the kernel has is to be sent, or was sent and waits to be acknowledged.

Examples:
  pepd custody                         by site and by flow, those that hold most first
  pepd custody --site mail
  pepd custody --json | jq '.sites[] | {site, memory, disk, kernel}'
";

const RELOAD_EXAMPLES: &str = "\
The running pepd reads its file again, and checks it whole. Where anything is wrong, every error is printed and nothing
changes (exit code 3). Otherwise what differs is printed, and another process takes over all flows; the process id of the first
one stays. Returns when the next process is ready. The log says the same after SIGHUP. What the flows that there are depend on
(`intercept.table`, marks, larger limits of memory) needs a stop and a start, and so does everything where `custody.survive` is off.

Examples:
  pepd reload --dry-run                what would change?
  pepd reload
  systemctl reload pepd                the same; the log says how it went
";

const MIGRATE_EXAMPLES: &str = "\
Prints a configuration with remarks on what has no counterpart or another meaning. Changes nothing and asks nothing: what
PEPsal was told is given as its command line, its settings files (/etc/default/pepsal and /etc/pepsal/pepsal.conf are read where
they are, unless others are named), and the rules that redirect to it.

Examples:
  iptables-save -t mangle | pepd migrate --rules - --link sat0 --rate 10Mbit/s --rtt 600ms > pepd.toml
  nft list ruleset | pepd migrate --rules - > pepd.toml
  pepd migrate --lan eth0 --command \"pepsal -d -p 5000 -C hybla\" > pepd.toml
  pepd check --config pepd.toml
";

/// A transparent TCP performance enhancing proxy: splits the connections of the hosts behind it
/// and carries them over a bad link in a way that fits the link.
#[derive(Debug, Parser)]
#[command(name = "pepd", version, after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n{}", ExitStatus::HELP))]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Intercept and accelerate connections until a signal
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArgs),
    /// Check a configuration and print what it comes to
    #[command(after_help = CHECK_EXAMPLES)]
    Check(CheckArgs),
    /// Print what would be installed in the kernel
    #[command(after_help = RULES_EXAMPLES)]
    Rules(RulesArgs),
    /// Congestion controls: which there are
    #[command(after_help = CC_EXAMPLES)]
    Cc(CcArgs),
    /// Say how the link is, or ask
    #[command(after_help = LINK_EXAMPLES)]
    Link(LinkArgs),
    /// Say how it is: link, sites, peers, limits
    #[command(after_help = STATUS_EXAMPLES)]
    Status(AdminArgs),
    /// List what is held for hosts
    #[command(after_help = CUSTODY_EXAMPLES)]
    Custody(CustodyArgs),
    /// Give a running pepd another configuration, with all flows
    #[command(after_help = RELOAD_EXAMPLES)]
    Reload(ReloadArgs),
    /// Make the keys by which the two ends of a tunnel know each other
    #[command(after_help = KEYGEN_EXAMPLES)]
    Keygen(KeygenArgs),
    /// Make a configuration of what PEPsal was told
    #[command(after_help = MIGRATE_EXAMPLES)]
    Migrate(MigrateArgs),
}

/// Which running pepd is meant.
#[derive(Debug, Args)]
pub struct AdminArgs {
    /// Where the configuration is.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Its admin socket; goes before the configuration, which is not read then
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// Options of `pepd link`.
#[derive(Debug, Args)]
pub struct LinkArgs {
    /// How it is
    #[arg(value_enum, default_value_t)]
    pub state: LinkWord,
    /// For so long, such as 5min; without, until further notice
    #[arg(long = "for", value_name = "TIME", value_parser = units::duration::parse)]
    pub lasting: Option<Duration>,
    /// Which pepd.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// What to do about the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum LinkWord {
    /// Ask
    #[default]
    Status,
    /// It is there
    Up,
    /// It is away
    Down,
    /// As pepd finds out
    Auto,
}

impl LinkWord {
    /// What is ordered by it, if something is.
    pub fn order(self) -> Option<OrderedState> {
        match self {
            Self::Status => None,
            Self::Up => Some(OrderedState::Up),
            Self::Down => Some(OrderedState::Down),
            Self::Auto => Some(OrderedState::Auto),
        }
    }
}

/// Options of `pepd reload`.
#[derive(Debug, Args)]
pub struct ReloadArgs {
    /// Only check the file and say what would change
    #[arg(long)]
    pub dry_run: bool,
    /// Which pepd.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// Options of `pepd custody`.
#[derive(Debug, Args)]
pub struct CustodyArgs {
    /// Of this site only
    #[arg(long, value_name = "NAME")]
    pub site: Option<String>,
    /// Which pepd.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// Options of `pepd keygen`.
#[derive(Debug, Args)]
pub struct KeygenArgs {
    /// Where to write the private key of a new key pair
    #[arg(
        short,
        long,
        value_name = "FILE",
        default_value = "pepd.key",
        conflicts_with_all = ["psk", "public"]
    )]
    pub out: PathBuf,
    /// Write a new key that two peers share, instead of a key pair
    #[arg(long, value_name = "FILE", conflicts_with = "public")]
    pub psk: Option<PathBuf>,
    /// Print the public key of the private key in this file, and make none
    #[arg(long, value_name = "FILE", conflicts_with = "force")]
    pub public: Option<PathBuf>,
    /// Replace the file where it is there already: the key in it is then gone
    #[arg(long)]
    pub force: bool,
}

/// Options of `pepd migrate`.
#[derive(Debug, Args)]
pub struct MigrateArgs {
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
    /// The interface of the bad link
    #[arg(long, value_name = "NAME")]
    pub link: Option<String>,
    /// Its rate, such as 10Mbit/s
    #[arg(long, requires = "link")]
    pub rate: Option<String>,
    /// Its round-trip time, such as 600ms
    #[arg(long, requires = "link")]
    pub rtt: Option<String>,
}

/// Options of `pepd cc`.
#[derive(Debug, Args)]
pub struct CcArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: CcCommand,
}

/// What to do with congestion controls.
#[derive(Debug, Subcommand)]
pub enum CcCommand {
    /// List those of the kernel and of pepd, and say why any is missing
    #[command(after_help = CC_LIST_EXAMPLES)]
    List(ListArgs),
}

/// Options of `pepd cc list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// As JSON: a list of objects with name, kind (kernel, module, ebpf, taken, foreign, missing), about, and
    /// where they apply registered_as and why
    #[arg(long)]
    pub json: bool,
}

/// Where the configuration is.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// The configuration file (TOML)
    #[arg(
        short,
        long,
        value_name = "FILE",
        default_value = "/etc/pepd/pepd.toml"
    )]
    pub config: PathBuf,
}

/// Options of `pepd run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Where the configuration is.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// The form of log lines; goes before `log.format`
    #[arg(long, value_enum)]
    pub log_format: Option<FormatArg>,
    /// The least important lines to log; goes before RUST_LOG and `log.level`
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
    pub pulse: Option<i32>,
    /// How many processes before did not go on
    #[arg(long, hide = true, requires = "worker", default_value_t = 0)]
    pub hangs: u64,
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

/// Options of `pepd check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Where the configuration is.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Do not compare with this machine: the file is meant for another
    #[arg(long)]
    pub no_kernel: bool,
}

/// Options of `pepd rules`.
#[derive(Debug, Args)]
pub struct RulesArgs {
    /// Where the configuration is.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// For which tool
    #[arg(long, value_enum, default_value_t)]
    pub format: RulesFormat,
}

/// For which tool rules are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum RulesFormat {
    /// For `nft -f -`
    #[default]
    Nft,
    /// For `nft -j -f -`
    Json,
    /// Commands of iptables and ip6tables
    Iptables,
}

impl From<RulesFormat> for Format {
    fn from(format: RulesFormat) -> Self {
        match format {
            RulesFormat::Nft => Self::Nft,
            RulesFormat::Json => Self::Json,
            RulesFormat::Iptables => Self::Iptables,
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_of_the_command_line_go_before_the_file() {
        let cli = Cli::try_parse_from(["pepd", "run", "-c", "x.toml", "--log-format", "json"]);
        let Ok(Cli {
            command: Command::Run(run),
        }) = cli
        else {
            panic!("{cli:?}")
        };
        let file = LogConfig {
            format: LogFormat::Text,
            level: LogLevel::Warn,
        };
        let expected = LogConfig {
            format: LogFormat::Json,
            level: LogLevel::Warn,
        };
        assert_eq!(run.log(file), expected);
    }

    #[test]
    fn help_lists_every_exit_code() {
        let help = Cli::command().render_long_help().to_string();
        for code in 0..=6 {
            assert!(help.contains(&format!("\n  {code}  ")), "{help}");
        }
    }
}
