//! Table of all metrics.

use pep_core::stats::Stats;

use super::samples::{
    Of::{
        self, Boosters, Counter, Flows, FlowsBy, PacketsBy, Peer, ReceivedBoosters, ReceivedBy,
        Session, SessionBy, Site, Version, Whole,
    },
    counter, named,
};

/// Kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Only grows.
    Total,
    /// May fall.
    Gauge,
}

/// A metric.
#[derive(Debug, Clone, Copy)]
pub(super) struct Metric {
    /// Name without prefix and `_total`.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Help text, in one line.
    pub(super) meaning: &'static str,
    /// Object of the metric.
    pub(super) of: Of,
}

/// Returns all metrics, in the order of a scrape.
pub(super) fn metrics() -> impl Iterator<Item = Metric> {
    METRICS.iter().copied().chain(counters())
}

macro_rules! metrics {
    ($($(#[doc = $meaning:literal])+ $kind:ident $name:ident: $of:expr,)*) => {
        const METRICS: &[Metric] = &[$(Metric {
            name: stringify!($name),
            kind: Kind::$kind,
            meaning: concat!($($meaning),+).trim_ascii(),
            of: $of,
        },)*];
    };
}

metrics! {
    /// Version of pepd, as a label; the value is always 1.
    Gauge build_info: Version,
    /// Start of the process that carries flows, in Unix time.
    Gauge start_time_seconds: Whole(|all| all.started),
    /// 1 while pepd drains: it accepts no new flows and will end.
    Gauge draining: Whole(|all| f64::from(all.draining)),
    /// 1 while the link is up.
    Gauge link_up: Whole(|all| f64::from(all.link.report.up)),
    /// Outages of the link, including those before a restart.
    Total link_outages: Whole(|all| all.link.report.outages as f64),
    /// Total duration of link outages, including those before a restart.
    Total link_down_seconds: Whole(|all| all.link.report.down_s),
    /// Highest rate at which a flow that shares the link may send now, in bytes of IP packets.
    Gauge link_share_bytes_per_second: Whole(|all| counter(all, "link_level_bits") / 8.0),
    /// Maximum number of open flows.
    Gauge flows_limit: Whole(|all| all.limits.flows.most as f64),
    /// Maximum memory of all rings (`limits.memory`).
    Gauge memory_limit_bytes: Whole(|all| all.limits.memory.most as f64),
    /// Open descriptors of pepd's process; at most ten seconds old.
    Gauge descriptors: Whole(|all| all.limits.descriptors.used as f64),
    /// Maximum number of open descriptors of pepd's process.
    Gauge descriptors_limit: Whole(|all| all.limits.descriptors.most as f64),
    /// Maximum memory of custody (`custody.memory`).
    Gauge custody_memory_limit_bytes: Whole(|all| all.custody.memory.most as f64),
    /// Maximum disk space of custody (`custody.disk`); 0 without `custody.directory`.
    Gauge custody_disk_limit_bytes: Whole(|all| all.custody.disk.most as f64),

    /// Flows of the site that are open now.
    Gauge site_flows_open: Flows(|flows| flows.flows_open as f64),
    /// Flows of the site that pepd accepted.
    Total site_flows_accepted: Flows(|flows| flows.flows_accepted as f64),
    /// Flows of the site that ended, by the reason given in the log.
    Total site_flows_ended: FlowsBy("reason", |flows| flows.flows_ended.clone().into_iter().collect()),
    /// Bytes relayed for flows of the site, up to servers or down to clients.
    Total site_bytes: FlowsBy("direction", |flows| named([("up", flows.up_bytes), ("down", flows.down_bytes)])),
    /// Bytes held for hosts of the site in memory, on disk or in the kernel; at most ten seconds
    /// old.
    Gauge site_held_bytes: FlowsBy("place", |flows| named([
        ("memory", flows.held.memory),
        ("disk", flows.held.disk),
        ("kernel", flows.held.kernel),
    ])),
    /// Age of the oldest flow of the site with held bytes.
    Gauge site_held_oldest_seconds: Flows(|flows| flows.held.oldest_s as f64),
    /// 1 while the kernel forwards new flows of the site.
    Gauge site_bypassed: Site(|site| f64::from(site.bypassed.as_deref().is_some_and(|why| why != "silence"))),
    /// Number of IP versions (0 to 2) whose redirected SYNs do not arrive at the site's listener.
    Gauge site_interception_lost: Site(|site| site.interception_lost.len() as f64),

    /// 1 while the peer is up.
    Gauge peer_up: Peer(|peer| f64::from(peer.up)),
    /// Open flows in the tunnel to the peer, from both ends.
    Gauge peer_flows: Peer(|peer| peer.flows as f64),
    /// Smoothed round-trip time to the peer.
    Gauge peer_rtt_seconds: Session(|session| session.rtt_s),
    /// Minimum recent round-trip time to the peer.
    Gauge peer_rtt_min_seconds: Session(|session| session.rtt_min_s),
    /// Rate at which pepd sends to the peer.
    Gauge peer_rate_bytes_per_second: Session(|session| session.rate as f64 / 8.0),
    /// Estimated rate that the link to the peer carries for pepd.
    Gauge peer_link_rate_bytes_per_second: Session(|session| session.link_rate as f64 / 8.0),
    /// Rate to the peer set in the configuration; 0 if none.
    Gauge peer_stated_rate_bytes_per_second: Session(|session| session.stated_rate.unwrap_or(0) as f64 / 8.0),
    /// 1 while the link to the peer carries less than the configured rate.
    Gauge peer_stated_rate_too_high: Session(|session| f64::from(session.passes_less())),
    /// Share of packets to the peer that the link loses, before FEC.
    Gauge peer_loss_ratio: Session(|session| session.loss),
    /// Repair packets to the peer per packet of streams of class normal.
    Gauge peer_fec_overhead_ratio: Session(|session| session.fec_overhead),
    /// Bytes sent to the peer in this session, as on the link.
    Total peer_sent_bytes: Session(|session| session.bytes_sent as f64),
    /// Packets sent to the peer in this session.
    Total peer_packets_sent: Session(|session| session.packets_sent as f64),
    /// Repair packets sent to the peer in this session.
    Total peer_repairs_sent: Session(|session| session.repairs_sent as f64),
    /// Segments to the peer that were retransmitted because FEC did not restore them.
    Total peer_segments_retransmitted: Session(|session| session.segments_retransmitted as f64),
    /// Packets received from the peer in this session.
    Total peer_packets_received: Session(|session| session.packets_received as f64),
    /// Segments from the peer that FEC restored.
    Total peer_segments_restored: Session(|session| session.segments_restored as f64),
    /// Outages of the peer in this session: periods without packets from it.
    Total peer_outages: Session(|session| session.outages as f64),
    /// Packets to the peer that were lost: by the link, at a full queue (congestion), or in
    /// outages.
    Total peer_packets_lost: SessionBy("cause", |session| named([
        ("link", session.lost.link),
        ("congestion", session.lost.congestion),
        ("outage", session.lost.outage),
    ])),

    /// Packets of the site (mode `packet` or `boost`): from hosts (packets), sent into the tunnel
    /// or to the link (messages, with repairs), delivered to hosts (delivered), or dropped.
    Total packets: PacketsBy("counter", |packets| named([
        ("packets", packets.packets),
        ("messages", packets.messages),
        ("delivered", packets.delivered),
        ("dropped_full", packets.dropped_full),
        ("dropped_late", packets.dropped_late),
        ("dropped_long", packets.dropped_long),
    ])),
    /// Bytes of the site's packets from hosts (mode `packet` or `boost`), and of the messages sent
    /// for them.
    Total packets_bytes: PacketsBy("counter", |packets| named([
        ("packets", packets.bytes),
        ("messages", packets.message_bytes),
    ])),
    /// Counters of a booster of the site, named by `counter`; `on` is 1 while it is active.
    Gauge booster: Boosters,
    /// Messages and packets received in this session from a site of the peer (mode `packet`):
    /// messages, packets restored from them, messages unreadable or incomplete (given_up), packets
    /// dropped for congestion.
    Total packets_received: ReceivedBy("counter", |chain| named([
        ("messages", chain.messages),
        ("packets", chain.packets),
        ("unreadable", chain.unreadable),
        ("given_up", chain.given_up),
        ("dropped_congested", chain.dropped_congested),
    ])),
    /// Counters of a booster that receives packets of the peer, named by `counter`.
    Gauge booster_received: ReceivedBoosters,
    /// Messages with packets from the peer that were malformed or too many, and fragments without
    /// the rest of their datagrams beyond their memory.
    Total peer_packets_refused: Peer(|peer| peer.packets_refused as f64),
    /// Packets from the peer dropped as unmatched: no local site of mode `packet` takes their
    /// answers.
    Total peer_packets_unmatched: Peer(|peer| peer.packets_unmatched as f64),
    /// Packets from the peer dropped as martians: no router forwards them.
    Total peer_packets_martian: Peer(|peer| peer.packets_martian as f64),
}

/// Counters of the daemon that are gauges.
const NOW: &[&str] = &[
    "flows_open",
    "flows_open_max",
    "ring_bytes",
    "link_senders",
    "tunnel_peers_up",
    "tunnel_peers_by_tcp",
    "tunnel_tcp_connections",
    "custody_memory_bytes",
    "custody_disk_bytes",
    "syns_held",
    "hosts_at_cap",
];

/// Returns true for a counter of the daemon that has another form: by site, in another unit, or
/// none.
fn has_other_form(name: &str) -> bool {
    let others = [
        "flows_accepted",
        "up_bytes",
        "down_bytes",
        "link_level_bits",
        "syns_passed_gate",
        "syns_passed_hosts",
        "syns_passed_recent",
        "syns_passed_rate",
        "syns_passed_end_to_end",
        "syns_passed_no_route",
        "syns_passed_lost",
        "syns_blocked_lost",
        "syns_passed_filtered",
        "syns_passed_other_route",
        "syns_refused_unreached",
    ];
    name.starts_with("ended_") || others.contains(&name)
}

/// Returns the daemon's counters.
fn counters() -> impl Iterator<Item = Metric> {
    let names = Stats::default().entries().map(|(name, _)| name);
    let counters = names
        .zip(Stats::MEANINGS)
        .filter(|(name, _)| !has_other_form(name));
    counters.map(|(name, meaning)| Metric {
        name,
        kind: if NOW.contains(&name) {
            Kind::Gauge
        } else {
            Kind::Total
        },
        meaning: meaning.trim(),
        of: Counter(name),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn counters_that_are_no_totals_exist() {
        let known: BTreeSet<_> = Stats::default().entries().map(|(name, _)| name).collect();
        assert!(NOW.iter().all(|name| known.contains(name)));
    }
}
