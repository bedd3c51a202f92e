//! Probe of the path to a peer under load: body, events and report of `POST /v1/probe`; `text` is
//! their text form.

mod text;

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Minimum and maximum time for which each direction is loaded.
pub const LASTING: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Default of that time.
pub const LASTING_DEFAULT: Duration = Duration::from_secs(10);
/// Minimum and maximum of the limit on bytes of both directions together.
pub const BYTES: (u64, u64) = (10_000, 2 * pep_core::stream_header::PROBE_MAX);
/// Default of that limit.
pub const BYTES_DEFAULT: u64 = 50_000_000;

/// Body of `POST /v1/probe`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeOrder {
    /// Name of the peer whose path is probed.
    pub peer: String,
    /// Seconds for which each direction is loaded.
    #[serde(default = "lasting")]
    pub for_s: f64,
    /// Limit on bytes of both directions together, without retransmissions and headers.
    #[serde(default = "bytes")]
    pub bytes: u64,
    /// Class of the load, which decides the flows that it displaces.
    #[serde(default)]
    pub load: Load,
}

fn lasting() -> f64 {
    LASTING_DEFAULT.as_secs_f64()
}

fn bytes() -> u64 {
    BYTES_DEFAULT
}

/// Class of the load of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// Uses only the rate that no flow needs.
    #[default]
    DelayTolerant,
    /// Shares the rate with bulk flows.
    Bulk,
    /// Shares the rate with ordinary flows, and uses FEC.
    Normal,
}

/// Event of a probe: data tagged with the name of the event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Event {
    /// Progress, once a second.
    Progress(Progress),
    /// Report at the end.
    Report(Box<Report>),
    /// Cause of a premature end.
    Failed(String),
}

/// Phase of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// No load.
    Idle,
    /// The local end sends.
    Up,
    /// The peer sends.
    Down,
}

/// Progress of a probe: the event `progress`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Current phase.
    pub phase: Phase,
    /// Seconds since the probe began.
    pub seconds: f64,
    /// Bytes that have arrived in this phase.
    pub bytes: u64,
    /// Rate since the last event, in bit/s.
    pub rate: f64,
    /// Last round trip.
    pub rtt_s: f64,
}

/// Result of a probe: the event `report`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Name of the peer.
    pub peer: String,
    /// Transport of the tunnel: `udp` or `tcp`.
    pub carrier: String,
    /// Largest datagram that gets through, in bytes without IP and UDP headers.
    pub datagram: u64,
    /// Rate that the configuration states, in bit/s.
    pub stated_rate: Option<u64>,
    /// Estimated rate of the link to the peer, all traffic included, in bit/s; the stated rate if
    /// there is one.
    pub link_rate: Option<u64>,
    /// True if that rate was steady while the link was full.
    pub steady: bool,
    /// Rate at which pepd sent on the link under load, in bit/s, with hosts' flows and headers;
    /// none if too little was sent to measure it.
    #[serde(default)]
    pub on_link: Option<f64>,
    /// Round trips without load.
    pub idle: Option<Spread>,
    /// Direction to the peer.
    pub up: Direction,
    /// Direction from the peer.
    pub down: Direction,
    /// Packets lost on the way to the peer, by cause as far as it can be determined.
    pub causes: Causes,
    /// Share of packets to the peer that were retransmitted.
    #[serde(alias = "resent")]
    pub retransmitted: Option<f64>,
    /// Repair packets per packet of ordinary flows that this loss calls for.
    #[serde(alias = "overcode")]
    pub fec_overhead: f64,
    /// Times that no packet arrived from the peer for long.
    pub outages: u64,
    /// Suggested configuration.
    pub suggestion: Suggestion,
}

/// Measurements of one direction under load.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Direction {
    /// Duration of the load.
    pub seconds: f64,
    /// Bytes that arrived.
    pub bytes: u64,
    /// Rate in bit/s without the initial phase; none if too little arrived to measure it.
    pub rate: Option<f64>,
    /// Median of the rates of half seconds, in bit/s.
    pub rate_median: Option<f64>,
    /// 95th percentile of the rates of half seconds, in bit/s.
    pub rate_p95: Option<f64>,
    /// Packets whose arrival was checked.
    pub packets: u64,
    /// Share of them that did not arrive, before FEC and retransmissions.
    pub loss: Option<f64>,
    /// Mean number of packets lost in a row.
    pub burst: Option<f64>,
    /// Round trips under load.
    pub rtt: Option<Spread>,
    /// Increase of the median round trip over the idle link.
    pub queue_s: Option<f64>,
}

/// Distribution of round trips.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Minimum.
    #[serde(alias = "least_s")]
    pub min_s: f64,
    /// Median.
    pub median_s: f64,
    /// 95th percentile.
    pub p95_s: f64,
}

/// Lost packets by cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Causes {
    /// Damaged by the link.
    pub link: u64,
    /// Dropped at a full queue.
    pub congestion: u64,
    /// Lost while the link was down.
    pub outage: u64,
}

/// Suggested configuration of a probe.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Suggestion {
    /// Keys for the existing section `[peer.NAME]`, as TOML.
    pub toml: String,
    /// Reasons and further hints.
    pub remarks: Vec<String>,
    /// Properties that a probe does not determine.
    pub unknown: Vec<String>,
}
