//! The flows that are open, and what passes by: the answer to `GET /v1/flows`; `text`, the same for people.

mod text;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{custody::FlowCustody, status::Used};

/// Flows that are listed unless something else is asked for, and at most.
pub const LISTED: usize = 100;
/// Each costs some system calls, and 1 kB of an answer.
pub const LISTED_MAX: usize = 10_000;

/// Which flows come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sort {
    /// Those with most bytes, both ways.
    #[default]
    Bytes,
    /// The oldest.
    Age,
    /// Those for which most is held.
    Held,
}

/// What is asked for: `?site=NAME&limit=N&sort=WORD`, each of them optional.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowsQuery {
    /// Flows of this site only.
    pub site: Option<String>,
    /// So many at most; 0 for the sums alone.
    pub limit: Option<usize>,
    /// Which first.
    #[serde(default)]
    pub sort: Sort,
}

/// Flows, for programs as JSON and for people as text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowsReport {
    /// How many there are of those that were asked for, listed or not.
    pub total: usize,
    /// The first of them.
    pub flows: Vec<FlowStatus>,
    /// What passes by, and why.
    pub not_accelerated: NotAccelerated,
}

/// A flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowStatus {
    /// What it is, and what is held for it.
    #[serde(flatten)]
    pub flow: FlowCustody,
    /// The other end of its tunnel; none where it is in none.
    pub peer: Option<String>,
    /// How far it has come: `accepted` (its server, or its peer, has not answered), `relaying`, `closing`.
    pub state: String,
    /// Bytes that have come from the client.
    pub up_bytes: u64,
    /// Bytes that have come from the server.
    pub down_bytes: u64,
    /// Its connection with the client; none where it is at the other end of a tunnel, or gone.
    pub client_leg: Option<LegStatus>,
    /// Its connection with the server; likewise.
    pub server_leg: Option<LegStatus>,
}

/// What the kernel says of a leg. Rates are in bit/s of payload, times of limits since it was opened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LegStatus {
    /// Our end of it.
    #[serde(default)]
    pub local: Option<String>,
    /// The other end.
    #[serde(default)]
    pub remote: Option<String>,
    /// Its TCP state, as ss(8) has it.
    pub state: String,
    /// Its congestion control.
    pub congestion: String,
    /// The smoothed round-trip time; none before it was measured.
    pub rtt_s: Option<f64>,
    /// The least one lately.
    pub rtt_min_s: Option<f64>,
    /// The congestion window, in segments.
    pub cwnd: u32,
    /// Bytes of payload in a segment.
    pub mss: u32,
    /// Segments sent that are not acknowledged up to; some behind a gap may have arrived.
    pub unacked: u32,
    /// Segments in flight: sent, and neither known to have arrived nor taken for lost.
    #[serde(default)]
    pub in_flight: u32,
    /// Segments sent again.
    pub retransmitted: u32,
    /// How fast it may send; none where it may at any rate.
    pub pacing_rate: Option<u64>,
    /// How fast it last delivered; none before it has.
    pub delivery_rate: Option<u64>,
    /// How long it had something to send.
    pub busy_s: f64,
    /// Of that, how long the receiver's window held it up.
    pub rwnd_limited_s: f64,
    /// Of that, how long its own send buffer did.
    pub sndbuf_limited_s: f64,
    /// Receive window in bytes, where it limits what the other end sends.
    #[serde(default)]
    pub receive_limit: Option<u64>,
}

/// New connections that the kernel forwards, and why.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct NotAccelerated {
    /// Sites of which it forwards all new ones now.
    pub sites: Vec<LeftSite>,
    /// Sites of which it drops the SYNs of new ones now (`on_interception_loss = "block"`).
    #[serde(default)]
    pub blocked: Vec<LeftSite>,
    /// Whether it forwards all new ones now, of all sites, as flows, descriptors or memory are short, or pepd is to end.
    pub gate_closed: bool,
    /// Flows, which there may not be more of.
    pub flows: Used,
    /// How often that came about, by counter: since this process began.
    pub reasons: BTreeMap<String, u64>,
}

/// A site whose new connections the kernel forwards, or whose SYNs it drops.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftSite {
    /// Its name.
    pub site: String,
    /// Reason: `mode` (it is configured so), `operator` (who has switched it off), `link` or `peer`
    /// (which is away), `interception` (what pepd redirects is dropped on this machine), `silence`
    /// (no server answers).
    pub why: String,
    /// The only families of which it does so, IPv4 or IPv6; empty where it does of all.
    #[serde(default)]
    pub families: Vec<String>,
}
