//! What is asked of a running pepd, or told it: `pepd link`, `status`, `flows`, `probe`, `site`, `custody`, `reload` and
//! `drain`.

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
`auto` or the end of `--for`. While the link is down, new flows go as their site's `while_down`
says, and tunnels stop sending.

Examples:
  pepd link status                     how it is, who says so, the last outages
  pepd link down --for 5min            it will be away: a pass ends, a dish is moved
  pepd link up                         it is there, whatever else says otherwise
  pepd link auto                       pepd knows best again
  pepd link status --json | jq .up
";

pub(super) const STATUS_EXAMPLES: &str = "\
Says how a running pepd is: the link and its outages; flows, rates and what is held, by site; peers with round trip, rate,
loss and FEC; what is used of the limits. Rates are means of the last five seconds, what is held is at most ten
seconds old, counts are since the process that carries flows began. docs/operating.md says what each means.

Examples:
  pepd status
  pepd status --json | jq '.sites[] | {name, flows_open, up_rate, down_rate}'
  watch pepd status
";

pub(super) const FLOWS_EXAMPLES: &str = "\
Lists the flows that are open: site, kind (split here, or one end of a tunnel: near the client, or far from it), age, bytes so far,
what is held for it, and for each of its connections here what the kernel says: congestion control, round trip, segments
under way of the congestion window, rate, segments sent again, and what holds it up. The last line says which new
connections pass by, unaccelerated, and why. docs/operating.md says more.

Examples:
  pepd flows                           the 100 with most bytes
  pepd flows --site mail --sort held --limit 10
  pepd flows --json | jq '.flows[] | {client, destination, server_leg}'
";

pub(super) const TOP_EXAMPLES: &str = "\
Shows a running pepd in the terminal, live: the link and its outages; rates, what is held, loss before and after
FEC over the last ten minutes; sites, peers, what is used of the limits; and, by `f`, flows. `?` shows all keys, `q` ends it.
Where pepd goes away it says so, and goes on when there is one again. It needs 80 columns and 24 lines. NO_COLOR is
honoured. docs/operating.md says what each means.

Examples:
  pepd top
  pepd top --interval 5s               asks more seldom
  pepd top --once                      one frame as text, for scripts
";

pub(super) const PROBE_EXAMPLES: &str = "\
Loads the path to a peer, first toward it and then from it, and says what it is like, idle and full: rate, round trip, queue, loss and
its bursts, whether UDP gets through, and what a configuration for it would say. Nothing is changed by it. It sends bytes of no meaning
through the running pepd's tunnel, and by default only what no flow needs; on a metered link they cost what others do: `--bytes`
bounds them. One at a time; interrupted, it ends. Both pepds have to know it. docs/operating.md says more.

Examples:
  pepd probe hub                       ten seconds in each direction, 50 MB at most
  pepd probe hub --for 30s --bytes 10M
  pepd probe hub --json | jq '.up.rate, .idle.median_s'
";

pub(super) const CUSTODY_EXAMPLES: &str = "\
Lists what is held: bytes that a host was told have arrived, and that the other end has not acknowledged yet. Memory
is pepd's own; what the kernel has is to be sent, or was sent and waits to be acknowledged.

Examples:
  pepd custody                         by site and by flow, those that hold most first
  pepd custody --site mail
  pepd custody --json | jq '.sites[] | {site, memory, disk, kernel}'
";

pub(super) const RELOAD_EXAMPLES: &str = "\
The running pepd reads its file again, and checks it whole. Where anything is wrong, every error is printed and nothing
changes (exit code 3). Otherwise what differs is printed, and another process takes over all flows; the process id of the first
one stays. Returns when the next process is ready; should that not come up, as a port is taken perhaps, the configuration before
is in use again (exit code 1). The log says the same after SIGHUP. Changes to settings that open
flows depend on (`intercept.table`, marks, larger memory limits) need a stop and a start, and so
does everything where `custody.survive` is off.

Examples:
  pepd reload --dry-run                what would change?
  pepd reload
  systemctl reload pepd                the same; the log says how it went
";

pub(super) const SITE_EXAMPLES: &str = "\
While a site is off, the kernel forwards its new flows, unaccelerated; those that are open go on as they are. Packets of a site of
mode packet or block pass. It stays off through reloads, restarts and crashes, until it is switched on again or pepd has ended in order. Returns when the kernel's rules are changed.

Examples:
  pepd site                            which there are, and whose new flows are taken
  pepd site off mail                   is it pepd that mail suffers from?
  pepd site on mail
";

pub(super) const DRAIN_EXAMPLES: &str = "\
Takes no new flows any more, which the kernel forwards; waits until those that are open have ended, and then ends pepd, its rules and
routes, as SIGTERM does. Flows that take longer than the timeout are reset. Returns when pepd has ended: exit code 0 when all flows
have ended by themselves, 5 when some were reset. Interrupted, it only stops waiting.

Examples:
  pepd drain                           within `timeouts.drain` of the configuration
  pepd drain --timeout 2h              before a gateway is replaced
";

/// Which running pepd is meant.
#[derive(Debug, Args)]
pub struct SocketArgs {
    /// Configuration of the pepd to ask (default: the pepd running here)
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Admin socket of that pepd; overrides --config, whose file is not read then
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

/// Which running pepd is meant, and how it is shown.
#[derive(Debug, Args)]
pub struct AdminArgs {
    /// Which one.
    #[command(flatten)]
    pub which: SocketArgs,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// Options of `pepd link`.
#[derive(Debug, Args)]
pub struct LinkArgs {
    /// Link state to set, or `status`
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
    /// Force up
    Up,
    /// Force down
    Down,
    /// Detect automatically
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

/// Options of `pepd flows`.
#[derive(Debug, Args)]
pub struct FlowsArgs {
    /// Show only this site
    #[arg(long, value_name = "NAME")]
    pub site: Option<String>,
    /// So many at most, up to 10,000
    #[arg(long, value_name = "N", default_value_t = LISTED as u64,
        value_parser = listed)]
    pub limit: u64,
    /// Sort order
    #[arg(long, value_enum, default_value_t)]
    pub sort: SortArg,
    /// Which pepd.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// Which flows come first, as an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum SortArg {
    /// Those with most bytes, both ways
    #[default]
    Bytes,
    /// The oldest
    Age,
    /// Those for which most is held
    Held,
}

/// Options of `pepd probe`.
#[derive(Debug, Args)]
pub struct ProbeArgs {
    /// The peer, as the configuration calls it
    pub peer: String,
    /// For how long each direction is loaded, from 1s to 60s
    #[arg(long = "for", value_name = "TIME", value_parser = lasting, default_value = "10s")]
    pub lasting: Duration,
    /// Bytes of both directions together at most, from 10k to 20G; headers and what is sent again come on top
    #[arg(long, value_name = "SIZE", value_parser = probed, default_value = "50M")]
    pub bytes: u64,
    /// Class of the probe's traffic
    #[arg(long, value_enum, default_value_t)]
    pub load: LoadArg,
    /// Which pepd.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// The class of what a probe sends, as an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum LoadArg {
    /// Only what nobody else needs
    #[default]
    DelayTolerant,
    /// Beside other bulk flows, and at their cost
    Bulk,
    /// As ordinary flows, with error correction, and at their cost
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
    /// Prints one frame as text, and ends
    #[arg(long)]
    pub once: bool,
    /// How often to ask, from 200ms to 10s
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "1s")]
    pub interval: Duration,
    /// Which pepd.
    #[command(flatten)]
    pub which: SocketArgs,
}

/// More often makes pepd work for nothing, more seldom tells too little of ten minutes.
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
    /// What to do.
    #[command(subcommand)]
    pub what: Option<SiteCommand>,
    /// Which pepd.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// What to do about sites.
#[derive(Debug, Subcommand)]
pub enum SiteCommand {
    /// List them
    List(AdminArgs),
    /// Accelerate the site's new flows again
    On(NamedSite),
    /// Forward the site's new flows unaccelerated
    Off(NamedSite),
}

/// A site.
#[derive(Debug, Args)]
pub struct NamedSite {
    /// Its name
    pub name: String,
    /// Which pepd.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// Options of `pepd drain`.
#[derive(Debug, Args)]
pub struct DrainArgs {
    /// How long flows may take to end, such as 5min, a week at most; without, as `timeouts.drain` says
    #[arg(long, value_name = "TIME", value_parser = grace)]
    pub timeout: Option<Duration>,
    /// Which pepd.
    #[command(flatten)]
    pub admin: AdminArgs,
}

fn grace(text: &str) -> Result<Duration, String> {
    let grace = units::duration::parse(text).map_err(|err| err.to_string())?;
    if grace > GRACE_MAX {
        return Err("expected a week at most".to_owned());
    }
    Ok(grace)
}

/// Options of `pepd custody`.
#[derive(Debug, Args)]
pub struct CustodyArgs {
    /// Show only this site
    #[arg(long, value_name = "NAME")]
    pub site: Option<String>,
    /// Which pepd.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// Options of `pepd reload`.
#[derive(Debug, Args)]
pub struct ReloadArgs {
    /// Only check the file and say what would change
    #[arg(long)]
    pub dry_run: bool,
    /// Reload although it removes a peer and resets its flows
    #[arg(long)]
    pub reset_flows: bool,
    /// Which pepd.
    #[command(flatten)]
    pub admin: AdminArgs,
}
