//! Which metrics there are.

use pep_core::stats::Stats;

use super::samples::{
    Of::{
        self, Boosters, Counter, Flows, FlowsBy, PacketsBy, Peer, ReceivedBoosters, ReceivedBy,
        Session, SessionBy, Site, Version, Whole,
    },
    counter, named,
};

/// Whether it only grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// It does.
    Total,
    /// It may fall.
    Gauge,
}

/// A metric.
#[derive(Debug, Clone, Copy)]
pub(super) struct Metric {
    /// Its name, without the prefix and without `_total`.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// What it means, in one line.
    pub(super) meaning: &'static str,
    /// What it tells of.
    pub(super) of: Of,
}

/// All there are, in the order in which they are told.
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
    /// Always 1; the version of the program.
    Gauge build_info: Version,
    /// When the process that carries flows began, in Unix time.
    Gauge start_time_seconds: Whole(|all| all.started),
    /// 1 while no new flows are taken, as pepd is to end.
    Gauge draining: Whole(|all| f64::from(all.draining)),
    /// 1 while the link is up.
    Gauge link_up: Whole(|all| f64::from(all.link.report.up)),
    /// Link outages, including those known from before a restart.
    Total link_outages: Whole(|all| all.link.report.outages as f64),
    /// Total seconds of all link outages, including those known from before a restart.
    Total link_down_seconds: Whole(|all| all.link.report.down_s),
    /// The rate at which each flow that shares the link may send now, in IP packets.
    Gauge link_share_bytes_per_second: Whole(|all| counter(all, "link_level_bits") / 8.0),
    /// Flows that there may be.
    Gauge flows_limit: Whole(|all| all.limits.flows.most as f64),
    /// Memory that rings may have, `limits.memory`.
    Gauge memory_limit_bytes: Whole(|all| all.limits.memory.most as f64),
    /// Descriptors open, as of at most ten seconds ago.
    Gauge descriptors: Whole(|all| all.limits.descriptors.used as f64),
    /// Descriptors that there may be.
    Gauge descriptors_limit: Whole(|all| all.limits.descriptors.most as f64),
    /// Memory that custody may have, `custody.memory`.
    Gauge custody_memory_limit_bytes: Whole(|all| all.custody.memory.most as f64),
    /// Disk that custody may have, `custody.disk`; 0 without a folder.
    Gauge custody_disk_limit_bytes: Whole(|all| all.custody.disk.most as f64),

    /// Flows open now.
    Gauge site_flows_open: Flows(|flows| flows.flows_open as f64),
    /// Flows accepted.
    Total site_flows_accepted: Flows(|flows| flows.flows_accepted as f64),
    /// Flows that ended, by reason, as the log has it.
    Total site_flows_ended: FlowsBy("reason", |flows| flows.flows_ended.clone().into_iter().collect()),
    /// Bytes relayed, up to servers or down to clients.
    Total site_bytes: FlowsBy("direction", |flows| named([("up", flows.up_bytes), ("down", flows.down_bytes)])),
    /// Bytes held for hosts in memory, on disk and in the kernel; at most ten seconds old.
    Gauge site_held_bytes: FlowsBy("place", |flows| named([
        ("memory", flows.held.memory),
        ("disk", flows.held.disk),
        ("kernel", flows.held.kernel),
    ])),
    /// The age of the oldest flow of which something is held.
    Gauge site_held_oldest_seconds: Flows(|flows| flows.held.oldest_s as f64),
    /// 1 while the kernel forwards new flows of the site.
    Gauge site_bypassed: Site(|site| f64::from(site.bypassed.as_deref().is_some_and(|why| why != "silence"))),
    /// Families, IPv4 and IPv6, of which SYNs that pepd redirects do not arrive: 0 to 2.
    Gauge site_interception_lost: Site(|site| site.interception_lost.len() as f64),

    /// 1 while the peer is up.
    Gauge peer_up: Peer(|peer| f64::from(peer.up)),
    /// Flows in the tunnel, from here and from there.
    Gauge peer_flows: Peer(|peer| peer.flows as f64),
    /// The smoothed round-trip time.
    Gauge peer_rtt_seconds: Session(|session| session.rtt_s),
    /// Lowest recent round-trip time.
    Gauge peer_rtt_min_seconds: Session(|session| session.rtt_min_s),
    /// Rate at which pepd sends to the peer.
    Gauge peer_rate_bytes_per_second: Session(|session| session.rate as f64 / 8.0),
    /// Link rate estimated for pepd.
    Gauge peer_link_rate_bytes_per_second: Session(|session| session.link_rate as f64 / 8.0),
    /// Rate stated in the configuration; 0 if none.
    Gauge peer_stated_rate_bytes_per_second: Session(|session| session.stated_rate.unwrap_or(0) as f64 / 8.0),
    /// 1 while the link passes less than the stated rate.
    Gauge peer_stated_rate_too_high: Session(|session| f64::from(session.passes_less())),
    /// The share of our packets that the link loses, before FEC.
    Gauge peer_loss_ratio: Session(|session| session.loss),
    /// Repair packets per packet of normal streams.
    Gauge peer_fec_overhead_ratio: Session(|session| session.fec_overhead),
    /// Bytes sent in this session, as on the link.
    Total peer_sent_bytes: Session(|session| session.bytes_sent as f64),
    /// Packets sent in this session.
    Total peer_packets_sent: Session(|session| session.packets_sent as f64),
    /// Repair packets sent in this session.
    Total peer_repairs_sent: Session(|session| session.repairs_sent as f64),
    /// Segments lost in spite of FEC, which went again.
    Total peer_segments_retransmitted: Session(|session| session.segments_retransmitted as f64),
    /// Packets received in this session.
    Total peer_packets_received: Session(|session| session.packets_received as f64),
    /// Segments that FEC restored here.
    Total peer_segments_restored: Session(|session| session.segments_restored as f64),
    /// Times in this session that nothing came from the peer for long.
    Total peer_outages: Session(|session| session.outages as f64),
    /// Our packets that did not arrive: lost by the link, at a full queue (congestion), to outages.
    Total peer_packets_lost: SessionBy("cause", |session| named([
        ("link", session.lost.link),
        ("congestion", session.lost.congestion),
        ("outage", session.lost.outage),
    ])),

    /// Packets of sites in mode `packet`: of hosts (packets), sent for them into the tunnel
    /// (messages, repairs included), given to hosts (delivered), dropped.
    Total packets: PacketsBy("what", |packets| named([
        ("packets", packets.packets),
        ("messages", packets.messages),
        ("delivered", packets.delivered),
        ("dropped_full", packets.dropped_full),
        ("dropped_late", packets.dropped_late),
        ("dropped_long", packets.dropped_long),
    ])),
    /// Bytes of the host packets of sites in mode `packet`, and of the messages sent for them.
    Total packets_bytes: PacketsBy("what", |packets| named([
        ("packets", packets.bytes),
        ("messages", packets.message_bytes),
    ])),
    /// Counters of one booster of a site, named by `what`; `on` is 1 while it is active.
    Gauge booster: Boosters,
    /// What the sites of a peer in mode `packet` have sent in this session, by their number there:
    /// messages, packets that came of them, messages that could not be read or put together
    /// (given_up), packets dropped as the link was congested.
    Total packets_received: ReceivedBy("what", |chain| named([
        ("messages", chain.messages),
        ("packets", chain.packets),
        ("unreadable", chain.unreadable),
        ("given_up", chain.given_up),
        ("dropped_congested", chain.dropped_congested),
    ])),
    /// Counters of one booster that receives this peer's packets, named by `what`.
    Gauge booster_received: ReceivedBoosters,
    /// Messages of packets of the peer that made no sense.
    Total peer_packets_refused: Peer(|peer| peer.packets_refused as f64),
    /// Packets of the peer that were dropped, as no site takes what answers them: it has a site of
    /// mode `packet` that is missing here.
    Total peer_packets_unmatched: Peer(|peer| peer.packets_unmatched as f64),
    /// Packets of the peer that were dropped, as no router lets them go on.
    Total peer_packets_martian: Peer(|peer| peer.packets_martian as f64),
}

/// Counters of the daemon that are not totals.
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

/// Whether a counter of the daemon is told as something else: by site, in another unit, or not at
/// all.
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
        "syns_passed_other_route",
    ];
    name.starts_with("ended_") || others.contains(&name)
}

/// The daemon's counters.
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
