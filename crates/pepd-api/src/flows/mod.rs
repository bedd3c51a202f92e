//! Open flows and unaccelerated connections: the response to `GET /v1/flows`; `text` is its text
//! form.

mod text;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{custody::FlowCustody, status::Used};

/// Default number of listed flows.
pub const LISTED: usize = 100;
/// Maximum number of listed flows. Each costs some system calls and 1 kB of the response.
pub const LISTED_MAX: usize = 10_000;

/// Sort order of flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sort {
    /// By bytes of both directions, descending.
    #[default]
    Bytes,
    /// By age, the oldest first.
    Age,
    /// By held bytes, descending.
    Held,
}

/// Query `?site=NAME&limit=N&sort=WORD`; each part is optional.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowsQuery {
    /// Restricts the list to this site.
    pub site: Option<String>,
    /// Maximum number of listed flows; 0 for the sums alone.
    pub limit: Option<usize>,
    /// Sort order.
    #[serde(default)]
    pub sort: Sort,
}

/// Open flows, as JSON or text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowsReport {
    /// Number of matching flows, listed or not.
    pub total: usize,
    /// Listed flows.
    pub flows: Vec<FlowStatus>,
    /// New connections that the kernel forwards, and the causes.
    pub not_accelerated: NotAccelerated,
}

/// State of a flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowStatus {
    /// Identity and held data.
    #[serde(flatten)]
    pub flow: FlowCustody,
    /// Peer of the tunnel; none without a tunnel.
    pub peer: Option<String>,
    /// State: `accepted` (no answer yet from the server or peer), `relaying`, `closing`.
    pub state: String,
    /// Bytes received from the client.
    pub up_bytes: u64,
    /// Bytes received from the server.
    pub down_bytes: u64,
    /// Leg to the client; none if it is at the other end of a tunnel, or closed.
    pub client_leg: Option<LegStatus>,
    /// Leg to the server; none if it is at the other end of a tunnel, or closed.
    pub server_leg: Option<LegStatus>,
}

/// Kernel's state of a leg. Rates are in bit/s of payload. Times of limits count from its opening.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LegStatus {
    /// Local address and port.
    #[serde(default)]
    pub local: Option<String>,
    /// Remote address and port.
    #[serde(default)]
    pub remote: Option<String>,
    /// TCP state, as in ss(8).
    pub state: String,
    /// Congestion control.
    pub congestion: String,
    /// Smoothed round-trip time; none until measured.
    pub rtt_s: Option<f64>,
    /// Recent minimum of the round-trip time.
    pub rtt_min_s: Option<f64>,
    /// Congestion window, in segments.
    pub cwnd: u32,
    /// Payload bytes per segment.
    pub mss: u32,
    /// Segments beyond the cumulative acknowledgement; some behind a gap may have arrived.
    pub unacked: u32,
    /// Segments in flight: sent, and neither selectively acknowledged nor considered lost.
    #[serde(default)]
    pub in_flight: u32,
    /// Retransmitted segments.
    pub retransmitted: u32,
    /// Pacing rate; none if unlimited.
    pub pacing_rate: Option<u64>,
    /// Last delivery rate; none until measured.
    pub delivery_rate: Option<u64>,
    /// Time with data to send.
    pub busy_s: f64,
    /// Part of `busy_s` limited by the receiver's window.
    pub rwnd_limited_s: f64,
    /// Part of `busy_s` limited by the send buffer.
    pub sndbuf_limited_s: f64,
    /// Receive window in bytes, if it limits the remote sender.
    #[serde(default)]
    pub receive_limit: Option<u64>,
}

/// New connections that the kernel forwards, and the causes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct NotAccelerated {
    /// Sites whose new connections are forwarded now.
    pub sites: Vec<LeftSite>,
    /// Sites whose new SYNs are dropped now (`on_interception_loss = "block"`).
    #[serde(default)]
    pub blocked: Vec<LeftSite>,
    /// True if new connections of all sites are forwarded now: flows, descriptors or memory are
    /// short, or pepd drains.
    pub gate_closed: bool,
    /// Use of the limit on flows.
    pub flows: Used,
    /// Occurrences by cause since this process began.
    pub reasons: BTreeMap<String, u64>,
}

/// Site whose new connections the kernel forwards, or whose SYNs it drops.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftSite {
    /// Name of the site.
    pub site: String,
    /// Cause: `mode` (its mode is bypass), `operator` (switched off), `link` or `peer` (down),
    /// `interception` (redirected packets are dropped on this machine), `silence` (no server
    /// answers over IPv6).
    pub why: String,
    /// Affected address families, IPv4 or IPv6; empty for all.
    #[serde(default)]
    pub families: Vec<String>,
}
