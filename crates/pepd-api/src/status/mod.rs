//! State of a running pepd: the response to `GET /v1/status`; `text` is its text form.

mod packets;
mod text;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::link::LinkReport;
pub use packets::boosters_on;
pub use text::{contact, no_session, passes, reach, unreached};

/// State of a running pepd. Unless stated otherwise, counts start with this process, and rates are
/// means over the last seconds in bit/s of hosts' payload. Readers ignore unknown fields.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the program.
    pub version: String,
    /// Process that carries flows.
    pub pid: u32,
    /// Start of that process, in seconds of Unix time.
    pub started: f64,
    /// Seconds since its start.
    pub uptime_s: f64,
    /// Earlier processes that carried these flows.
    pub restarts: u64,
    /// True while pepd accepts no new flows and waits for the open ones to end.
    pub draining: bool,
    /// Program that has installed the rules, with its version, or `manual`; empty from an older
    /// pepd.
    #[serde(default)]
    pub rules: String,
    /// Interfaces of `intercept.lan` that do not exist.
    #[serde(default)]
    pub lan_missing: Vec<String>,
    /// State of the link.
    pub link: LinkStatus,
    /// Traffic of all flows.
    pub total: Traffic,
    /// Sites in the order of the configuration.
    pub sites: Vec<SiteStatus>,
    /// Traffic of flows that peers opened; none without peers.
    pub from_peers: Option<Traffic>,
    /// Peers of tunnels.
    pub peers: Vec<PeerStatus>,
    /// Counters of sites of mode `boost`, at most a second old.
    #[serde(default)]
    pub boosted: Vec<PacketStatus>,
    /// Bytes held for peers in memory and on disk, beyond the initial buffers of flows.
    pub custody: Custody,
    /// Use of limits.
    pub limits: Limits,
    /// Daemon's counters by name, as logged on SIGUSR1.
    pub counters: BTreeMap<String, u64>,
}

impl Status {
    /// Returns the sites of mode `packet`, each with its peer, and those of mode `boost`.
    pub fn packet_sites(&self) -> impl Iterator<Item = (Option<&PeerStatus>, &PacketStatus)> {
        let of_peers = self
            .peers
            .iter()
            .flat_map(|peer| peer.packets.iter().map(move |site| (Some(peer), site)));
        of_peers.chain(self.boosted.iter().map(|site| (None, site)))
    }
}

/// Configuration and state of the link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// Interface; none without `[link]`.
    pub interface: Option<String>,
    /// Stated rate in bit/s.
    pub rate: Option<u64>,
    /// Stated rate of the downlink in bit/s.
    #[serde(default)]
    pub rate_down: Option<u64>,
    /// Stated round-trip time.
    pub rtt_s: Option<f64>,
    /// Rate in bit/s of traffic that leaves by the interface besides flows that share the link;
    /// none if it does not count.
    #[serde(default)]
    pub other_rate: Option<u64>,
    /// State and last outages.
    #[serde(flatten)]
    pub report: LinkReport,
}

/// Traffic of a group of flows.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Traffic {
    /// Open flows.
    pub flows_open: u64,
    /// Accepted flows.
    pub flows_accepted: u64,
    /// Ended flows by reason; reasons without flows are omitted.
    pub flows_ended: BTreeMap<String, u64>,
    /// Bytes relayed from clients to servers.
    pub up_bytes: u64,
    /// Bytes relayed from servers to clients.
    pub down_bytes: u64,
    /// Rate from clients to servers.
    pub up_rate: f64,
    /// Rate from servers to clients.
    pub down_rate: f64,
    /// Held data, at most ten seconds old.
    pub held: Held,
}

impl Traffic {
    /// Adds the traffic of another group.
    pub fn add(&mut self, other: &Self) {
        self.flows_open += other.flows_open;
        self.flows_accepted += other.flows_accepted;
        for (reason, count) in &other.flows_ended {
            *self.flows_ended.entry(reason.clone()).or_default() += count;
        }
        self.up_bytes += other.up_bytes;
        self.down_bytes += other.down_bytes;
        self.up_rate += other.up_rate;
        self.down_rate += other.down_rate;
        self.held.memory += other.held.memory;
        self.held.disk += other.held.disk;
        self.held.kernel += other.held.kernel;
        self.held.oldest_s = self.held.oldest_s.max(other.held.oldest_s);
    }
}

/// Bytes that pepd has acknowledged to a host and the other end has not acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Held {
    /// Bytes in pepd's memory.
    pub memory: u64,
    /// Bytes on disk.
    pub disk: u64,
    /// Bytes in the kernel.
    pub kernel: u64,
    /// Age in seconds of the oldest flow with held data.
    pub oldest_s: u64,
}

/// State of a site.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SiteStatus {
    /// Name of the site.
    pub name: String,
    /// Mode: split, tunnel, packet, boost, bypass, block.
    pub mode: String,
    /// Preferred congestion controls of the link leg; the first available one is used. Empty for
    /// the kernel's default.
    pub congestion: Vec<String>,
    /// Peer of its tunnel.
    pub peer: Option<String>,
    /// True with `clear = "never"`: packets of its hosts leave through the tunnel or not at all.
    #[serde(default)]
    pub clear_never: bool,
    /// Cause if the kernel forwards its new flows: `mode` (configured so), `operator` (switched
    /// off), `link` or `peer` (down), `interception` (redirected SYNs are lost; families of
    /// `interception_lost` only), `silence` (no server answers over IPv6; IPv6 only).
    pub bypassed: Option<String>,
    /// Address families whose redirected SYNs are lost: `IPv4`, `IPv6`.
    #[serde(default)]
    pub interception_lost: Vec<String>,
    /// Treatment of new flows of these families: `pass` or `block`; none if no family is affected.
    #[serde(default)]
    pub on_interception_loss: Option<String>,
    /// Traffic of its flows.
    #[serde(flatten)]
    pub traffic: Traffic,
}

impl SiteStatus {
    /// Describes the families with lost interception and the treatment of their new flows; none if
    /// no family is affected.
    pub fn loss(&self) -> Option<String> {
        let families = self.interception_lost.join(", ");
        let fate = match (self.on_interception_loss.as_deref(), self.mode.as_str()) {
            _ if families.is_empty() => return None,
            (Some("block"), _) => "are blocked",
            (_, "tunnel") => "bypass the tunnel",
            _ => "are not accelerated",
        };
        Some(format!(
            "{families}: new flows {fate} (redirected packets are dropped here)"
        ))
    }
}

/// State of a peer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Name of the peer.
    pub name: String,
    /// Configured endpoint; none if the peer calls this pepd.
    pub endpoint: Option<String>,
    /// Address and port where it was last heard, else the first to be called.
    #[serde(default)]
    pub remote: Option<String>,
    /// Addresses and ports at which it is called, in this order after `remote`; empty if the peer
    /// calls this pepd, or `endpoint` has not resolved yet.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// Seconds since its last packet; none if this process has received none.
    #[serde(default)]
    pub heard_s: Option<f64>,
    /// Bytes of datagrams that this process sent to it, without IP and UDP headers.
    #[serde(default)]
    pub sent_bytes: u64,
    /// Bytes of datagrams received from it.
    #[serde(default)]
    pub received_bytes: u64,
    /// True if the peer is up.
    #[serde(alias = "here")]
    pub up: bool,
    /// Cause of a missing session: `unanswered`, `answers_rejected`, `keys`, `version` or
    /// `counter`.
    #[serde(default)]
    pub no_session: Option<String>,
    /// Version of the tunnel protocol that the peer speaks, with `version`.
    #[serde(default)]
    pub other_version: Option<u8>,
    /// Address families whose hosts it does not reach: `IPv4`, `IPv6`. New flows to them are
    /// refused.
    #[serde(default)]
    pub unreached: Vec<String>,
    /// Flows in its tunnel, opened by either end.
    pub flows: u64,
    /// Hosts that it may speak for, as prefixes; none without the key `from`.
    #[serde(default)]
    pub from: Option<Vec<String>>,
    /// Destinations that it may reach, as prefixes with ports; none without the key `to`.
    #[serde(default)]
    pub to: Option<Vec<String>>,
    /// False with `flows = 0`; none from an older pepd.
    #[serde(default)]
    pub may_open_flows: Option<bool>,
    /// Current session, if any.
    pub session: Option<SessionStatus>,
    /// Counters of local sites of mode `packet`, at most a second old.
    #[serde(default)]
    pub packets: Vec<PacketStatus>,
    /// Counters of packets from the peer's sites of mode `packet`.
    #[serde(default)]
    pub packets_received: Vec<ReceivedStatus>,
    /// True if the peer accepts packets; none without a session or a local site of mode `packet`.
    #[serde(default)]
    pub takes_packets: Option<bool>,
    /// Local boosters that the peer supports, once it has announced them.
    #[serde(default)]
    pub understands: Option<Vec<String>>,
    /// Malformed packet messages from the peer.
    #[serde(default)]
    pub packets_refused: u64,
    /// Packets from the peer dropped because no local site accepts their replies.
    #[serde(default, alias = "packets_foreign")]
    pub packets_unmatched: u64,
    /// Protocol and addresses of the last such packet.
    #[serde(default, alias = "foreign_last")]
    pub unmatched_last: Option<String>,
    /// Packets from the peer dropped because of unroutable (martian) addresses.
    #[serde(default)]
    pub packets_martian: u64,
}

/// Counters of a site of mode `packet`, since the process began.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PacketStatus {
    /// Name of the site.
    pub site: String,
    /// Packets taken from hosts.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    /// Messages sent into the tunnel for them.
    pub messages: u64,
    /// Bytes of these messages.
    pub message_bytes: u64,
    /// Packets given to hosts.
    pub delivered: u64,
    /// Packets dropped at a full queue.
    pub dropped_full: u64,
    /// Packets dropped after too long a wait.
    pub dropped_late: u64,
    /// Queued bytes.
    pub queued_bytes: u64,
    /// Age of the first packet in the queue.
    pub queued_s: f64,
    /// Packets dropped as too long for the tunnel.
    #[serde(default)]
    pub dropped_long: u64,
    /// Counters of boosters, by name.
    pub boosters: BTreeMap<String, BTreeMap<String, u64>>,
}

/// Counters of packets from a peer's site of mode `packet`, since the session began.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReceivedStatus {
    /// Number of the site in the peer's configuration, from 0; it may have no local counterpart.
    pub chain: u8,
    /// Received messages.
    pub messages: u64,
    /// Packets reconstructed from them.
    pub packets: u64,
    /// Messages that no booster could decode.
    pub unreadable: u64,
    /// Fragmented messages with missing fragments.
    pub given_up: u64,
    /// Packets dropped as congestion signals, because their senders do not support ECN.
    pub dropped_congested: u64,
    /// Counters of the boosters' receiving sides, by name.
    pub boosters: BTreeMap<String, BTreeMap<String, u64>>,
}

/// State of a session with a peer, at most a second old. Counts start with the session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Transport: udp or tcp.
    pub carrier: Option<String>,
    /// State of the path: up; silent (nothing arrives, pepd continues to send); stopped (pepd sends
    /// only beacons).
    pub path: String,
    /// Smoothed round-trip time.
    pub rtt_s: f64,
    /// Recent minimum of the round-trip time.
    pub rtt_min_s: f64,
    /// Sending rate in bit/s.
    pub rate: u64,
    /// Estimated rate that the link carries for pepd, in bit/s.
    pub link_rate: u64,
    /// Stated rate in bit/s, if any.
    #[serde(default)]
    pub stated_rate: Option<u64>,
    /// Comparison of the link with the stated rate. `unused`: never filled. `carried`: the link
    /// carries it or more. `less`: the link has carried less for a while. `shared`: other traffic
    /// fills the link. None if the link is `dedicated`: pepd measures nothing then.
    #[serde(default)]
    pub stated: Option<String>,
    /// Share of sent packets that the link loses, 0 to 1, before FEC.
    pub loss: f64,
    /// Repair packets per packet of normal streams.
    #[serde(alias = "overcode")]
    pub fec_overhead: f64,
    /// Sent packets of all kinds.
    pub packets_sent: u64,
    /// Bytes that they took on the link.
    pub bytes_sent: u64,
    /// Repair packets among them.
    pub repairs_sent: u64,
    /// Segments lost in spite of FEC and retransmitted.
    #[serde(alias = "segments_resent")]
    pub segments_retransmitted: u64,
    /// Received packets of all kinds.
    pub packets_received: u64,
    /// Segments that FEC restored at this end.
    pub segments_restored: u64,
    /// Times that no packet arrived from the peer for long.
    pub outages: u64,
    /// Sent packets that did not arrive, by cause.
    pub lost: Causes,
}

impl SessionStatus {
    /// Returns true if the link has carried less than the stated rate for a while.
    pub fn passes_less(&self) -> bool {
        self.stated.as_deref() == Some("less")
    }
}

/// Lost packets by cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Causes {
    /// Lost by the link.
    pub link: u64,
    /// Dropped at a full queue.
    pub congestion: u64,
    /// Lost to outages.
    pub outage: u64,
}

/// Use of the limits on data held for peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Custody {
    /// Bytes in memory.
    pub memory: Used,
    /// Bytes on disk.
    pub disk: Used,
}

/// Use of limits.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Limits {
    /// Flows.
    pub flows: Used,
    /// Maximum number of flows per host; none if unlimited.
    #[serde(default)]
    pub flows_per_host: Option<u32>,
    /// Hosts at that maximum, whose new flows the kernel forwards: those with most flows, at most
    /// [`HOSTS_MAX`].
    #[serde(default)]
    pub hosts_at_cap: Vec<HostAtCap>,
    /// Bytes of memory for flows.
    pub memory: Used,
    /// File descriptors, at most ten seconds old.
    pub descriptors: Used,
}

/// Maximum number of listed hosts; the counter `hosts_at_cap` has their total number.
pub const HOSTS_MAX: usize = 16;

/// Host with the maximum number of flows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostAtCap {
    /// IPv4 address or IPv6 /64 prefix.
    pub host: String,
    /// Number of its flows.
    pub flows: u32,
}

/// Use of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Used {
    /// Amount in use.
    pub used: u64,
    /// Limit.
    pub most: u64,
}
