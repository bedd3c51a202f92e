//! Command lines of commands for a running pepd: `pepd link`, `status`, `flows`, `top`, `probe`,
//! `custody`, `reload`, `site` and `drain`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand, ValueEnum};
use pepd_api::{
    change::GRACE_MAX,
    flows::{LISTED, LISTED_MAX},
    link::OrderedState,
    probe::{self, Load},
};
use units::{ByteSize, UnitError};

pub(super) const LINK_EXAMPLES: &str = "\
Shows or sets the link's state. An operator's `up` or `down` overrides what pepd detects, until
`auto` or the end of `--for`. While the link is down, tunnels send no data, open flows wait (split
ones retransmit), and the key `while_down` of a site decides about its new flows: they wait, are
reset, or pass unaccelerated. The other end is not notified.

Examples:
  pepd link status                     state, its source, last outages
  pepd link down --for 5min            announce an outage: satellite sets, antenna is moved
  pepd link up                         force up, whatever pepd detects
  pepd link auto                       return to detection
  pepd link status --json | jq .up
";

pub(super) const STATUS_EXAMPLES: &str = "\
Shows the link and its outages; flows, rates and held data by site; round trip, rate, loss and FEC
of peers; and the use of limits. Rates are means of the last five seconds. The amount of held data
is updated every ten seconds. Process and uptime are those of the worker process. Counts start at
zero in each new one: after a reload, an upgrade or a crash (`restarts`). Outages of the link are
counted across them. docs/operating.md explains each figure.

Limits: memory is that of flows (`limits.memory`); for data held for peers see `custody.memory` and
`custody.disk`.

Columns of sites:
  held       data acknowledged to a host, but not yet by the other end
  oldest     age of the oldest flow with held data
  (from peers)  flows that peers opened and that leave their tunnel here

Columns of peers:
  state      up; silent (no packets arrive, pepd continues to send); stopped (silent for longer, or
             the link is down: pepd sends only beacons); down (no session, or silent for
             `lost_after`)
  transport  UDP or TCP below the tunnel (`carrier` in the log)
  rate       current sending rate of this end
  loss       share of sent packets that the link loses, before FEC
  FEC        repair packets per packet sent
  retrans    segments lost in spite of FEC and retransmitted
  outages    times that the peer was silent or the link down, in this session

Examples:
  pepd status
  pepd status --json | jq '.sites[] | {name, flows_open, up_rate, down_rate}'
  watch pepd status
";

pub(super) const FLOWS_EXAMPLES: &str = "\
Lists open flows: number, site, kind, age, bytes and held data. The kind is split, or the end of the
tunnel at which this pepd is: near (of the client) or far (of the server). Below, for each local
connection: its congestion control, round trip, segments in flight and congestion window, the
kernel's latest delivery rate, retransmitted segments, and what limits it (receiver's window, send
buffer). The last line names new connections that pepd does not accelerate, and the cause.
docs/operating.md explains each figure and state.

Examples:
  pepd flows                           the 100 flows with most bytes
  pepd flows --site mail --sort held --limit 10
  pepd flows --json | jq '.flows[] | {client, destination, server_leg}'
";

pub(super) const TOP_EXAMPLES: &str = "\
Shows the status live: the link and its outages; graphs of rates, held data, and loss before and
after FEC over ten minutes; sites, peers and use of limits; and flows. `f` toggles the list of
flows, `?` shows all keys, `q` quits. If pepd ends, the last data stays visible until a pepd
answers again. Needs 80 columns and 24 lines; honours NO_COLOR. docs/operating.md explains each
figure.

Examples:
  pepd top
  pepd top --interval 5s               query less often
  pepd top --once                      one frame as text, for scripts
";

pub(super) const PROBE_EXAMPLES: &str = "\
Loads the path to a peer, first toward it and then from it, and measures it idle and under load.
Reports rate, round trip, queue, loss, loss bursts, and whether UDP gets through. Suggests a
configuration, and changes nothing.

The load goes through the tunnel of the running pepd, and by default uses only the rate that no
flow needs: on a busy link the result is the spare rate. On a metered link its bytes cost like any
others; `--bytes` limits them. Each end runs one probe at a time. Interrupting the command ends the
probe. Both pepds must support probes.
docs/operating.md explains each figure.

Examples:
  pepd probe hub                       ten seconds in each direction, at most 50 MB
  pepd probe hub --for 30s --bytes 10M
  pepd probe hub --json | jq '.up.rate, .idle.median_s'
";

pub(super) const CUSTODY_EXAMPLES: &str = "\
Lists held data: bytes that pepd has acknowledged to a host, but the other end (the server, or the
peer of a tunnel) has not acknowledged yet. `memory` and `disk` are bytes that pepd keeps; `kernel`
are bytes in socket buffers: not read, not sent, or not acknowledged yet.

Examples:
  pepd custody                         by site and by flow, the largest amounts first
  pepd custody --site mail
  pepd custody --json | jq '.sites[] | {site, memory, disk, kernel}'
";

pub(super) const RELOAD_EXAMPLES: &str = "\
pepd reads its configuration file again and checks it. On an error it prints every error and
changes nothing (exit code 3). Otherwise it prints the differences, and a new worker process takes
over all flows. The process id of the supervisor (systemd's main PID) stays; that of the worker,
which `pepd status` shows, changes.

pepd always applies the file with which it was started. The command returns when the new process is
ready. If that process does not start, for example because a port is taken, the previous
configuration stays in use (exit code 1). SIGHUP does the same, with the result in the log. A
change of settings that open flows depend on (`intercept.table`, packet marks, larger memory limits)
is refused: restart pepd to apply it. If `custody.survive` is off, reload refuses every change.

Examples:
  pepd reload --dry-run                print the differences only
  pepd reload
  systemctl reload pepd                the same; the log has the result
";

pub(super) const SITE_EXAMPLES: &str = "\
A site is a policy of the configuration (`[[site]]`) for the connections that it matches. While a
site is off, the kernel forwards its new flows unaccelerated; open flows continue. Packets of a site
with mode packet or block are forwarded as well. The site stays off through reloads, restarts
and crashes, until it is switched on or pepd is stopped. The command returns when the kernel's
rules have changed.

Examples:
  pepd site                            list sites and whether they are on
  pepd site off mail                   find out whether pepd causes a problem
  pepd site on mail
";

pub(super) const DRAIN_EXAMPLES: &str = "\
pepd accepts no new flows (the kernel forwards them), waits for open ones to end, removes its rules
and routes, and exits, as on SIGTERM. Flows that exceed the timeout are reset. The command returns
when pepd has ended: exit code 0 if all flows finished, 5 if some were reset. Ctrl-C ends only the
command; pepd continues to drain.

Examples:
  pepd drain                           within `timeouts.drain` of the configuration
  pepd drain --timeout 2h              before a gateway is replaced
";

/// Options that select a running pepd.
#[derive(Debug, Args)]
pub struct SocketArgs {
    /// Configuration file of a running pepd: this command uses its admin socket (default: the only
    /// pepd that runs here)
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Admin socket of that pepd; --config is then ignored
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

/// Options that select a running pepd and the output format.
#[derive(Debug, Args)]
pub struct AdminArgs {
    /// Running pepd to query.
    #[command(flatten)]
    pub which: SocketArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Options of `pepd link`.
#[derive(Debug, Args)]
pub struct LinkArgs {
    /// Link state to set, or `status`
    #[arg(value_enum, default_value_t)]
    pub state: LinkWord,
    /// Duration, such as 5min; without it, until `pepd link auto`
    #[arg(long = "for", value_name = "TIME", value_parser = units::duration::parse)]
    pub lasting: Option<Duration>,
    /// Running pepd to query.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// Actions of `pepd link`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum LinkWord {
    /// Show the state
    #[default]
    Status,
    /// Force up
    Up,
    /// Force down
    Down,
    /// Detect automatically
    Auto,
}

impl LinkWord {
    /// Returns the state to set, if any.
    pub fn order(self) -> Option<OrderedState> {
        match self {
            Self::Status => None,
            Self::Up => Some(OrderedState::Up),
            Self::Down => Some(OrderedState::Down),
            Self::Auto => Some(OrderedState::Auto),
        }
    }
}

/// Options of `pepd flows`.
#[derive(Debug, Args)]
pub struct FlowsArgs {
    /// Show only this site
    #[arg(long, value_name = "NAME")]
    pub site: Option<String>,
    /// Maximum number of flows, up to 10,000
    #[arg(long, value_name = "N", default_value_t = LISTED as u64,
        value_parser = listed)]
    pub limit: u64,
    /// Sort order
    #[arg(long, value_enum, default_value_t)]
    pub sort: SortArg,
    /// Running pepd to query.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// Sort order of flows, as an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum SortArg {
    /// Most bytes in both directions first
    #[default]
    Bytes,
    /// Oldest first
    Age,
    /// Most held data first
    Held,
}

/// Options of `pepd probe`.
#[derive(Debug, Args)]
pub struct ProbeArgs {
    /// Name of the peer in the configuration
    pub peer: String,
    /// Duration of the load in each direction, from 1s to 60s
    #[arg(long = "for", value_name = "TIME", value_parser = lasting, default_value = "10s")]
    pub lasting: Duration,
    /// Maximum bytes of both directions together, from 10k to 20G, without headers and
    /// retransmissions
    #[arg(long, value_name = "SIZE", value_parser = probed, default_value = "50M")]
    pub bytes: u64,
    /// Class of the probe's traffic
    #[arg(long, value_enum, default_value_t)]
    pub load: LoadArg,
    /// Running pepd to query.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// Class of the load of a probe, as an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum LoadArg {
    /// Use only the rate that no flow needs
    #[default]
    DelayTolerant,
    /// Share the rate with bulk flows
    Bulk,
    /// Share the rate with ordinary flows; repair packets (FEC) protect the load
    Normal,
}

impl From<LoadArg> for Load {
    fn from(load: LoadArg) -> Self {
        match load {
            LoadArg::DelayTolerant => Self::DelayTolerant,
            LoadArg::Bulk => Self::Bulk,
            LoadArg::Normal => Self::Normal,
        }
    }
}

fn listed(text: &str) -> Result<u64, String> {
    let number = text.parse().ok();
    let number = number.filter(|number| *number <= LISTED_MAX as u64);
    number.ok_or_else(|| format!("expected 0 to {LISTED_MAX}"))
}

fn lasting(text: &str) -> Result<Duration, String> {
    let lasting = units::duration::parse(text).map_err(|err| err.to_string())?;
    if (probe::LASTING.0..=probe::LASTING.1).contains(&lasting) {
        return Ok(lasting);
    }
    Err("expected 1s to 60s".to_owned())
}

fn probed(text: &str) -> Result<u64, String> {
    let size: ByteSize = text.parse().map_err(|err: UnitError| err.to_string())?;
    if (probe::BYTES.0..=probe::BYTES.1).contains(&size.bytes()) {
        return Ok(size.bytes());
    }
    Err("expected 10k to 20G".to_owned())
}

/// Options of `pepd top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Print one frame as text and exit
    #[arg(long)]
    pub once: bool,
    /// Interval between queries, from 200ms to 10s
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "1s")]
    pub interval: Duration,
    /// Running pepd to query.
    #[command(flatten)]
    pub which: SocketArgs,
}

/// Parses an interval. Shorter ones load pepd for nothing, longer ones leave gaps in the graphs.
fn interval(text: &str) -> Result<Duration, String> {
    let interval = units::duration::parse(text).map_err(|err| err.to_string())?;
    if (Duration::from_millis(200)..=Duration::from_secs(10)).contains(&interval) {
        return Ok(interval);
    }
    Err("expected 200ms to 10s".to_owned())
}

/// Options of `pepd site`.
#[derive(Debug, Args)]
pub struct SiteArgs {
    /// Subcommand.
    #[command(subcommand)]
    pub what: Option<SiteCommand>,
    /// Running pepd to query.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// Subcommands of `pepd site`.
#[derive(Debug, Subcommand)]
pub enum SiteCommand {
    /// List sites
    List(AdminArgs),
    /// Accelerate the site's new flows again
    On(NamedSite),
    /// Forward the site's new flows unaccelerated
    Off(NamedSite),
}

/// Options of `pepd site on` and `off`.
#[derive(Debug, Args)]
pub struct NamedSite {
    /// Name of the site
    pub name: String,
    /// Running pepd to query.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// Options of `pepd drain`.
#[derive(Debug, Args)]
pub struct DrainArgs {
    /// Time for flows to end, such as 5min, at most a week; `timeouts.drain` if absent
    #[arg(long, value_name = "TIME", value_parser = grace)]
    pub timeout: Option<Duration>,
    /// Running pepd to query.
    #[command(flatten)]
    pub admin: AdminArgs,
}

fn grace(text: &str) -> Result<Duration, String> {
    let grace = units::duration::parse(text).map_err(|err| err.to_string())?;
    if grace > GRACE_MAX {
        return Err("expected a week or less".to_owned());
    }
    Ok(grace)
}

/// Options of `pepd custody`.
#[derive(Debug, Args)]
pub struct CustodyArgs {
    /// Show only this site
    #[arg(long, value_name = "NAME")]
    pub site: Option<String>,
    /// Running pepd to query.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// Options of `pepd reload`.
#[derive(Debug, Args)]
pub struct ReloadArgs {
    /// Check the file and print the differences without applying them
    #[arg(long)]
    pub dry_run: bool,
    /// Reload even if that removes a peer with open flows and resets them; else that is an error
    #[arg(long)]
    pub reset_flows: bool,
    /// Running pepd to query.
    #[command(flatten)]
    pub admin: AdminArgs,
}
