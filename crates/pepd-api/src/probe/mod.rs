//! The path to a peer under load: the order, the events and the report of `POST /v1/probe`; `text`, the same for people.

mod text;

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// For how long each direction may be loaded.
pub const LASTING: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// The same unless something else is asked for.
pub const LASTING_DEFAULT: Duration = Duration::from_secs(10);
/// Bytes of both directions, at most: least, and most.
pub const BYTES: (u64, u64) = (10_000, 2 * pep_core::stream_header::PROBE_MAX);
/// The same unless something else is asked for.
pub const BYTES_DEFAULT: u64 = 50_000_000;

/// The body of `POST /v1/probe`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeOrder {
    /// Whose path.
    pub peer: String,
    /// For how many seconds each direction is loaded.
    #[serde(default = "lasting")]
    pub for_s: f64,
    /// Bytes that both directions may carry together, repeats and headers not counted.
    #[serde(default = "bytes")]
    pub bytes: u64,
    /// Before which flows it goes.
    #[serde(default)]
    pub load: Load,
}

fn lasting() -> f64 {
    LASTING_DEFAULT.as_secs_f64()
}

fn bytes() -> u64 {
    BYTES_DEFAULT
}

/// The class of what a probe sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// Only what nobody else needs.
    #[default]
    DelayTolerant,
    /// Beside other bulk flows, and at their cost.
    Bulk,
    /// As ordinary flows, with error correction, and at their cost.
    Normal,
}

/// What is told of a probe: each event's data, named as the event is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Event {
    /// Once a second.
    Progress(Progress),
    /// At its end.
    Report(Box<Report>),
    /// It has ended before its time.
    Failed(String),
}

/// What a probe does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Nothing.
    Idle,
    /// It sends.
    Up,
    /// The peer sends.
    Down,
}

/// How far a probe is: the event `progress`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// What it does.
    pub phase: Phase,
    /// Since it began.
    pub seconds: f64,
    /// Bytes that have arrived in this phase.
    pub bytes: u64,
    /// The rate since the last one, in bit/s.
    pub rate: f64,
    /// The last round trip.
    pub rtt_s: f64,
}

/// What a probe has found: the event `report`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The peer's name.
    pub peer: String,
    /// By what it is reached: `udp` or `tcp`.
    pub carrier: String,
    /// The longest datagram that gets through, in bytes without IP and UDP.
    pub datagram: u64,
    /// The rate that the configuration states, in bit/s.
    pub stated_rate: Option<u64>,
    /// What the link is thought to carry from here to the peer, all that is on it counted, in bit/s; as stated, where it is.
    pub link_rate: Option<u64>,
    /// Whether that stood still while the link was full.
    pub steady: bool,
    /// What pepd sent on the link while it was loaded from here, hosts' flows and headers counted, in bit/s; none where that is too little
    /// to tell.
    #[serde(default)]
    pub on_link: Option<f64>,
    /// Round trips while nothing was sent.
    pub idle: Option<Spread>,
    /// From here to the peer.
    pub up: Direction,
    /// From the peer.
    pub down: Direction,
    /// Why packets from here did not arrive, as far as it can be told.
    pub causes: Causes,
    /// Packets from here that went again, as a share.
    pub retransmitted: Option<f64>,
    /// Repair packets per packet of ordinary flows that the loss asks for.
    pub fec_overhead: f64,
    /// Times that nothing came from the peer for long.
    pub outages: u64,
    /// What a configuration would say.
    pub suggestion: Suggestion,
}

/// One direction, while it was loaded.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Direction {
    /// For so long.
    pub seconds: f64,
    /// Bytes that arrived.
    pub bytes: u64,
    /// How fast, without the beginning, in bit/s; none where that is too little to tell.
    pub rate: Option<f64>,
    /// The median and the 95th percentile of half seconds.
    pub rate_median: Option<f64>,
    /// See there.
    pub rate_p95: Option<f64>,
    /// Packets that were looked for.
    pub packets: u64,
    /// The share of them that did not arrive, before error correction and repeats.
    pub loss: Option<f64>,
    /// How many were lost in a row, on average.
    pub burst: Option<f64>,
    /// Round trips meanwhile.
    pub rtt: Option<Spread>,
    /// What the median is above that of the idle link.
    pub queue_s: Option<f64>,
}

/// Round trips.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The least.
    pub min_s: f64,
    /// Half of them were shorter.
    pub median_s: f64,
    /// 19 of 20 were shorter.
    pub p95_s: f64,
}

/// Packets that did not arrive, by why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Causes {
    /// The link damaged them.
    pub link: u64,
    /// They met a full queue.
    pub congestion: u64,
    /// The link was away.
    pub outage: u64,
}

/// What follows from a report.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Suggestion {
    /// Keys of `[peer.NAME]`, as TOML: to be put into the section that there is.
    pub toml: String,
    /// Why, and what else to think of.
    pub remarks: Vec<String>,
    /// What a probe does not find out.
    pub unknown: Vec<String>,
}
