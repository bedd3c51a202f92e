//! State of a running pepd: the answer to `GET /v1/status`; `text`, the same for people.

mod packets;
mod text;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::link::LinkReport;
pub use packets::boosters_on;
pub use text::{contact, no_session, passes};

/// How a running pepd is. Counts are since this process began to carry flows, unless something else
/// is said; rates are means of the last seconds, in bit/s of what hosts send and receive. Readers
/// ignore fields that they do not know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Of the program.
    pub version: String,
    /// Of the process that carries flows.
    pub pid: u32,
    /// When that process began, in seconds of Unix time.
    pub started: f64,
    /// How many seconds ago that was.
    pub uptime_s: f64,
    /// Processes that have carried these flows before.
    pub restarts: u64,
    /// Whether it takes no new flows any more, and waits for the others to end.
    pub draining: bool,
    /// The link.
    pub link: LinkStatus,
    /// All flows together.
    pub total: Traffic,
    /// By site, in the order of the configuration.
    pub sites: Vec<SiteStatus>,
    /// Flows that peers have sent; none where there are no peers.
    pub from_peers: Option<Traffic>,
    /// The far ends of tunnels.
    pub peers: Vec<PeerStatus>,
    /// What is held for peers beyond the initial buffers of flows: bytes in memory and on disk.
    pub custody: Custody,
    /// What there may not be more of.
    pub limits: Limits,
    /// The daemon's counters, by name; those that SIGUSR1 logs.
    pub counters: BTreeMap<String, u64>,
}

/// The link, as it is configured and as it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// Its interface; none where the configuration has no `[link]`.
    pub interface: Option<String>,
    /// Its rate, where it is stated, in bit/s.
    pub rate: Option<u64>,
    /// The rate of what comes from it, where it is stated, in bit/s.
    #[serde(default)]
    pub rate_down: Option<u64>,
    /// Its round-trip time, where it is stated.
    pub rtt_s: Option<f64>,
    /// Whether it is there, and the last outages.
    #[serde(flatten)]
    pub report: LinkReport,
}

/// What flows have come to.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Traffic {
    /// Open now.
    pub flows_open: u64,
    /// Accepted.
    pub flows_accepted: u64,
    /// Ended, by reason; those that no flow has had are left out.
    pub flows_ended: BTreeMap<String, u64>,
    /// Bytes relayed from clients to servers.
    pub up_bytes: u64,
    /// Bytes relayed from servers to clients.
    pub down_bytes: u64,
    /// The rate up.
    pub up_rate: f64,
    /// The rate down.
    pub down_rate: f64,
    /// What is held for them, as of at most ten seconds ago.
    pub held: Held,
}

impl Traffic {
    /// Adds what other flows have come to.
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

/// Bytes that a host was told have arrived, and that the other end has not acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Held {
    /// In pepd's memory.
    pub memory: u64,
    /// On disk.
    pub disk: u64,
    /// In the kernel.
    pub kernel: u64,
    /// The age of the oldest flow of which something is held, in seconds.
    pub oldest_s: u64,
}

/// A site.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SiteStatus {
    /// Its name.
    pub name: String,
    /// How its flows are carried: split, tunnel, bypass.
    pub mode: String,
    /// Congestion controls of its link leg, the first that the kernel has is used; none: the
    /// kernel's own choice.
    pub congestion: Vec<String>,
    /// The far end of its tunnel.
    pub peer: Option<String>,
    /// Why the kernel forwards its new flows, where it does: by configuration (`mode`), as an
    /// `operator` has switched it off, as the `link` or the `peer` is away, or as SYNs that pepd
    /// redirects do not arrive (`interception`; those of `interception_lost` only), or as no server
    /// answers over IPv6 (`silence`; those of IPv6 only).
    pub bypassed: Option<String>,
    /// Families of which SYNs that pepd redirects do not arrive: `IPv4`, `IPv6`.
    #[serde(default)]
    pub interception_lost: Vec<String>,
    /// Fate of new flows of these families: `pass` or `block`; none where there are none.
    #[serde(default)]
    pub on_interception_loss: Option<String>,
    /// What its flows have come to.
    #[serde(flatten)]
    pub traffic: Traffic,
}

impl SiteStatus {
    /// The families whose interception is lost, why, and what becomes of their new flows; nothing
    /// where none is lost.
    pub fn loss(&self) -> Option<String> {
        let families = self.interception_lost.join(", ");
        let fate = match (self.on_interception_loss.as_deref(), self.mode.as_str()) {
            _ if families.is_empty() => return None,
            (Some("block"), _) => "are blocked",
            (_, "tunnel") => "pass outside of the tunnel",
            _ => "pass unaccelerated",
        };
        Some(format!(
            "{families}: new flows {fate}, as what pepd redirects is dropped here"
        ))
    }
}

/// The far end of a tunnel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Its name.
    pub name: String,
    /// Where it is called; none where it calls us.
    pub endpoint: Option<String>,
    /// Address and port where it was last heard, or else is to be called.
    #[serde(default)]
    pub remote: Option<String>,
    /// Addresses and ports at which it is called, in that order, but for `remote` first; none where
    /// it calls us, or where the name in `endpoint` has had no address yet.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// Seconds since a packet of it last arrived; none where this process has had none.
    #[serde(default)]
    pub heard_s: Option<f64>,
    /// Bytes of datagrams sent to it by this process, headers of IP and UDP not counted.
    #[serde(default)]
    pub sent_bytes: u64,
    /// Bytes of datagrams that came from it.
    #[serde(default)]
    pub received_bytes: u64,
    /// Whether it is there.
    pub up: bool,
    /// Why there is no session with it, where something is amiss: `unanswered`, `answers_rejected`, `keys`
    /// or `version`.
    #[serde(default)]
    pub no_session: Option<String>,
    /// Flows in its tunnel, from here and from there.
    pub flows: u64,
    /// The session with it, where there is one.
    pub session: Option<SessionStatus>,
    /// How the packets of its sites in mode `packet` fare, as of at most a second ago.
    #[serde(default)]
    pub packets: Vec<PacketStatus>,
    /// What its own such sites have sent.
    #[serde(default)]
    pub packets_received: Vec<ReceivedStatus>,
    /// Whether it takes packets, where there is a session and a site of ours that has some.
    #[serde(default)]
    pub takes_packets: Option<bool>,
    /// Boosters of ours that it understands, once it has said so.
    #[serde(default)]
    pub understands: Option<Vec<String>>,
    /// Messages of packets of its that made no sense.
    #[serde(default)]
    pub packets_refused: u64,
    /// Packets of its that were dropped, as no site takes what answers them.
    #[serde(default)]
    pub packets_unmatched: u64,
    /// The last of these: protocol and addresses.
    #[serde(default)]
    pub unmatched_last: Option<String>,
    /// Packets of its that were dropped, as no router lets them go on.
    #[serde(default)]
    pub packets_martian: u64,
}

/// Packets of a site that are carried beside flows. Counts are since the process began.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PacketStatus {
    /// The site.
    pub site: String,
    /// Packets of hosts, and their bytes.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What went into the tunnel for them: messages.
    pub messages: u64,
    /// Their bytes.
    pub message_bytes: u64,
    /// Packets given to hosts.
    pub delivered: u64,
    /// Packets dropped as the queue was full.
    pub dropped_full: u64,
    /// Packets dropped as they had waited for too long.
    pub dropped_late: u64,
    /// What is queued, in bytes.
    pub queued_bytes: u64,
    /// For how long the first of it has been.
    pub queued_s: f64,
    /// Packets dropped as no packet of the tunnel was long enough for them.
    #[serde(default)]
    pub dropped_long: u64,
    /// What each booster has done, by its name.
    pub boosters: BTreeMap<String, BTreeMap<String, u64>>,
}

/// What a site of a peer's in mode `packet` has sent. Counts are since the session began.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReceivedStatus {
    /// Which of them, in the order of its configuration, from 0: it may have others than we have.
    pub chain: u8,
    /// What came: messages.
    pub messages: u64,
    /// Packets that came of them.
    pub packets: u64,
    /// Messages that no booster could read.
    pub unreadable: u64,
    /// Messages in pieces of which some were missing.
    pub given_up: u64,
    /// Packets dropped as the link was congested, and their senders do not understand marks.
    pub dropped_congested: u64,
    /// What the receiving side of each booster has done, by its name.
    pub boosters: BTreeMap<String, BTreeMap<String, u64>>,
}

/// A session with a peer, as of at most a second ago. Counts are since it began.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// By what the peer is reached: udp or tcp.
    pub carrier: Option<String>,
    /// How the peer is heard: up; silent, but sending goes on; stopped, where only beacons are
    /// sent.
    pub path: String,
    /// The smoothed round-trip time.
    pub rtt_s: f64,
    /// The least of late.
    pub rtt_min_s: f64,
    /// How fast we send, in bit/s.
    pub rate: u64,
    /// What the link is thought to carry for us, in bit/s.
    pub link_rate: u64,
    /// The stated rate, in bit/s; nothing where none is.
    #[serde(default)]
    pub stated_rate: Option<u64>,
    /// A word for what the stated rate has turned out to be. `unused`: never filled. `carried`: the
    /// link passes that or more. `less`: the link has passed less for a while. `shared`: others
    /// fill the link. Nothing where the link is `dedicated`, as nothing is measured then.
    #[serde(default)]
    pub stated: Option<String>,
    /// The share of our packets that the link loses, 0 to 1: before error correction.
    pub loss: f64,
    /// Repair packets per packet of normal streams.
    pub fec_overhead: f64,
    /// Packets sent, of all kinds.
    pub packets_sent: u64,
    /// What they took on the link.
    pub bytes_sent: u64,
    /// Repair packets among them.
    pub repairs_sent: u64,
    /// Segments that were lost in spite of error correction, and went again.
    pub segments_retransmitted: u64,
    /// Packets received, of all kinds.
    pub packets_received: u64,
    /// Segments that error correction restored here.
    pub segments_restored: u64,
    /// Times that nothing came from the peer for long.
    pub outages: u64,
    /// Packets that did not arrive there, by cause: lost by the link, dropped at a full queue, lost
    /// to outages.
    pub lost: Causes,
}

impl SessionStatus {
    /// Tells whether the link has carried less than stated for a while.
    pub fn passes_less(&self) -> bool {
        self.stated.as_deref() == Some("less")
    }
}

/// Packets that did not arrive, by cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Causes {
    /// Lost by the link.
    pub link: u64,
    /// Dropped at a full queue.
    pub congestion: u64,
    /// Lost to outages.
    pub outage: u64,
}

/// What is held for peers, and how much may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Custody {
    /// Bytes of memory.
    pub memory: Used,
    /// Bytes on disk.
    pub disk: Used,
}

/// What there may not be more of.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Limits {
    /// Flows.
    pub flows: Used,
    /// Flows that one host may have; none where it may have all.
    #[serde(default)]
    pub flows_per_host: Option<u32>,
    /// Hosts that have as many, whose new flows the kernel forwards: those with the most, at most
    /// [`HOSTS_MAX`].
    #[serde(default)]
    pub hosts_at_cap: Vec<HostAtCap>,
    /// Bytes of memory for flows.
    pub memory: Used,
    /// Descriptors, as of at most ten seconds ago.
    pub descriptors: Used,
}

/// Hosts that a status lists; the counter `hosts_at_cap` says how many there are.
pub const HOSTS_MAX: usize = 16;

/// A host that has as many flows as one may have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostAtCap {
    /// Its IPv4 address, or its IPv6 /64.
    pub host: String,
    /// The flows that it has.
    pub flows: u32,
}

/// How much of something is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Used {
    /// Now.
    pub used: u64,
    /// At most.
    pub most: u64,
}
