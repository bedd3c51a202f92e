//! History of the last hours: the response to `GET /v1/history`.

use serde::{Deserialize, Serialize};

/// Start of an interval in seconds of Unix time, and its values in the order of the columns; a
/// value is none if unknown.
pub type Row = (u64, Vec<Option<f64>>);

/// History of the last hours, as JSON. Times are seconds of Unix time by the current clock.
///
/// Columns:
/// - `up_rate`, `down_rate`: mean rates of hosts' payload, in bit/s
/// - `flows`: maximum of open flows
/// - `link_up`: share of time in which the link was up, 0 to 1; none if no source reports its state
/// - `loss`, `fec_overhead`: of the peer with the highest value; loss is before FEC
/// - `packets`, `retransmitted`: packets with hosts' bytes sent to peers, and those retransmitted
/// - `custody_memory`, `custody_disk`: maximum of bytes held for peers
/// - `rtt_s`: mean round trip of the peer with the highest one
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HistoryReport {
    /// Process that recorded the history.
    pub pid: u32,
    /// Start of the recording. If the clock is set, this and all other times shift with it.
    pub began: u64,
    /// Names of the values of a row.
    pub columns: Vec<String>,
    /// Series of one-second and ten-second intervals.
    pub series: Vec<Series>,
    /// Outages of the link, the latest last.
    pub outages: Vec<Outage>,
    /// Number of recent outages that are no longer in the list.
    pub outages_forgotten: u64,
}

/// Series of intervals of one length, without those for which no sample exists.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Length of an interval in seconds.
    pub step_s: u64,
    /// Seconds for which intervals are kept.
    pub kept_s: u64,
    /// Intervals, the latest last. The latest may be incomplete.
    pub rows: Vec<Row>,
}

/// Outage of the link.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Outage {
    /// Start of the outage.
    pub began: f64,
    /// Duration in seconds; none while it continues.
    pub lasted_s: Option<f64>,
}

/// Query `?since=SECONDS` of Unix time; the whole history if absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistoryQuery {
    /// Omits entries that ended by this time.
    #[serde(default)]
    pub since: u64,
}
