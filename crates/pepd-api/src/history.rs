//! The last hours: the answer to `GET /v1/history`.

use serde::{Deserialize, Serialize};

/// When a span begins, in seconds of Unix time, and what was seen in it, in the order of the columns; none where there is
/// nothing to tell.
pub type Row = (u64, Vec<Option<f64>>);

/// The last hours, as JSON. Times are seconds of Unix time, as it is now.
///
/// Columns:
/// - `up_rate`, `down_rate`: means, in bit/s of what hosts send and receive
/// - `flows`: open, at most
/// - `link_up`: the share of time in which the link was there, 0 to 1; none where nobody tells
/// - `loss`, `fec_overhead`: the highest of all peers, before error correction
/// - `packets`, `resent`: packets with bytes of hosts that were sent to peers, and those among them that went again
/// - `custody_memory`, `custody_disk`: bytes held for peers, at most
/// - `rtt_s`: of the peer with the highest, the mean
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HistoryReport {
    /// The process that has seen it.
    pub pid: u32,
    /// When it began to look. It moves where Unix time is set, and all else with it.
    pub began: u64,
    /// The names of what is in a row.
    pub columns: Vec<String>,
    /// Seconds, and spans of ten.
    pub series: Vec<Series>,
    /// Times without the link, the latest last.
    pub outages: Vec<Outage>,
    /// Outages of the last hours beyond those that are kept.
    pub outages_forgotten: u64,
}

/// Spans of one length. Those in which nobody looked are missing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// How long each is, in seconds.
    pub step_s: u64,
    /// For how long they are kept, in seconds.
    pub kept_s: u64,
    /// The spans, the latest last. That one has not ended.
    pub rows: Vec<Row>,
}

/// A time without the link.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Outage {
    /// When it began.
    pub began: f64,
    /// How many seconds it lasted; none while it does.
    pub lasted_s: Option<f64>,
}

/// What is asked for: `?since=SECONDS` of Unix time, all that is kept without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistoryQuery {
    /// All that had not ended then.
    #[serde(default)]
    pub since: u64,
}
