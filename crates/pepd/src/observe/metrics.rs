//! A [`Status`] as metrics, in the text form of OpenMetrics 1.0.
//!
//! One table says what there is: docs/metrics.md lists it, and a test holds the two together. Labels are sites, peers and words of
//! ours, never flows or addresses: how much a scrape costs does not depend on what hosts do.

use std::fmt;

use pep_core::stats::Stats;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text},
    metrics::MetricType,
    registry::Registry,
};

use super::status::{PeerStatus, SessionStatus, Status, Traffic};

/// What a scrape is answered with.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// As which site flows are counted that peers have sent; no site has such a name.
const FROM_PEERS: &str = "(from peers)";

/// Whether it only grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
}
use Kind::{Counter, Gauge};

/// A metric's samples: the values of its labels, and its own.
type Samples = Vec<(Vec<String>, f64)>;

/// A metric: its name without the prefix and without `_total`, its labels, what it means in one line, and its samples.
type Metric = (
    &'static str,
    Kind,
    &'static [&'static str],
    &'static str,
    fn(&Status) -> Samples,
);

/// Of the process, the link and the limits.
const WHOLE: &[Metric] = &[
    (
        "build_info",
        Gauge,
        &["version"],
        "Always 1; the version of the program.",
        |s| vec![(vec![s.version.clone()], 1.0)],
    ),
    (
        "start_time_seconds",
        Gauge,
        &[],
        "When the process that carries flows began, in Unix time.",
        |s| one(s.started),
    ),
    (
        "draining",
        Gauge,
        &[],
        "1 while no new flows are taken, as pepd is to end.",
        |s| one(f64::from(s.draining)),
    ),
    (
        "link_up",
        Gauge,
        &[],
        "1 while the link is there, 0 while it is known to be away.",
        |s| one(f64::from(s.link.report.up)),
    ),
    (
        "link_outages",
        Counter,
        &[],
        "Outages of the link, and those known from before a restart.",
        |s| one(s.link.report.outages as f64),
    ),
    (
        "link_down_seconds",
        Counter,
        &[],
        "How long all of them were together.",
        |s| one(s.link.report.down_s),
    ),
    (
        "link_share_bytes_per_second",
        Gauge,
        &[],
        "The rate at which each flow that shares the link may send now, in IP packets.",
        |s| one(counted_as(s, "link_level_bits") / 8.0),
    ),
    ("flows_limit", Gauge, &[], "Flows that there may be.", |s| {
        one(s.limits.flows.most as f64)
    }),
    (
        "memory_limit_bytes",
        Gauge,
        &[],
        "Memory that rings may have, `limits.memory`.",
        |s| one(s.limits.memory.most as f64),
    ),
    (
        "descriptors",
        Gauge,
        &[],
        "Descriptors open, as of at most ten seconds ago.",
        |s| one(s.limits.descriptors.used as f64),
    ),
    (
        "descriptors_limit",
        Gauge,
        &[],
        "Descriptors that there may be.",
        |s| one(s.limits.descriptors.most as f64),
    ),
    (
        "custody_memory_limit_bytes",
        Gauge,
        &[],
        "Memory that custody may have, `custody.memory`.",
        |s| one(s.custody.memory.most as f64),
    ),
    (
        "custody_disk_limit_bytes",
        Gauge,
        &[],
        "Disk that custody may have, `custody.disk`; 0 without a folder.",
        |s| one(s.custody.disk.most as f64),
    ),
];

/// By site.
const BY_SITE: &[Metric] = &[
    (
        "site_flows_open",
        Gauge,
        &["site"],
        "Flows open now.",
        |s| by_site(s, |traffic| traffic.flows_open as f64),
    ),
    (
        "site_flows_accepted",
        Counter,
        &["site"],
        "Flows accepted.",
        |s| by_site(s, |traffic| traffic.flows_accepted as f64),
    ),
    (
        "site_flows_ended",
        Counter,
        &["site", "reason"],
        "Flows that ended, by reason, as the log has it.",
        |s| {
            by_site_and(s, |traffic| {
                let ended = traffic.flows_ended.iter();
                ended
                    .map(|(reason, count)| (reason.clone(), *count))
                    .collect()
            })
        },
    ),
    (
        "site_bytes",
        Counter,
        &["site", "direction"],
        "Bytes relayed, up to servers or down to clients.",
        |s| {
            by_site_and(s, |traffic| {
                named([("up", traffic.up_bytes), ("down", traffic.down_bytes)])
            })
        },
    ),
    (
        "site_held_bytes",
        Gauge,
        &["site", "place"],
        "Bytes held for hosts in memory, on disk and in the kernel; at most ten seconds old.",
        |s| {
            by_site_and(s, |Traffic { held, .. }| {
                named([
                    ("memory", held.memory),
                    ("disk", held.disk),
                    ("kernel", held.kernel),
                ])
            })
        },
    ),
    (
        "site_held_oldest_seconds",
        Gauge,
        &["site"],
        "The age of the oldest flow of which something is held.",
        |s| by_site(s, |traffic| traffic.held.oldest_s as f64),
    ),
    (
        "site_bypassed",
        Gauge,
        &["site"],
        "1 while the kernel forwards new flows of the site.",
        |s| {
            let sites = s.sites.iter();
            sites
                .map(|site| (vec![site.name.clone()], f64::from(site.bypassed.is_some())))
                .collect()
        },
    ),
];

/// By peer; most only while there is a session, and of that.
const BY_PEER: &[Metric] = &[
    (
        "peer_up",
        Gauge,
        &["peer"],
        "1 while the peer is there.",
        |s| by_peer(s, |peer| Some(f64::from(peer.here))),
    ),
    (
        "peer_flows",
        Gauge,
        &["peer"],
        "Flows in the tunnel, from here and from there.",
        |s| by_peer(s, |peer| Some(peer.flows as f64)),
    ),
    (
        "peer_rtt_seconds",
        Gauge,
        &["peer"],
        "The smoothed round-trip time.",
        |s| by_session(s, |session| session.rtt_s),
    ),
    (
        "peer_rtt_min_seconds",
        Gauge,
        &["peer"],
        "The least round-trip time of late.",
        |s| by_session(s, |session| session.rtt_min_s),
    ),
    (
        "peer_rate_bytes_per_second",
        Gauge,
        &["peer"],
        "How fast we send.",
        |s| by_session(s, |session| session.rate as f64 / 8.0),
    ),
    (
        "peer_link_rate_bytes_per_second",
        Gauge,
        &["peer"],
        "What the link is thought to carry for us.",
        |s| by_session(s, |session| session.link_rate as f64 / 8.0),
    ),
    (
        "peer_loss_ratio",
        Gauge,
        &["peer"],
        "The share of our packets that the link loses, before error correction.",
        |s| by_session(s, |session| session.loss),
    ),
    (
        "peer_overcode_ratio",
        Gauge,
        &["peer"],
        "Repair packets per packet of normal streams.",
        |s| by_session(s, |session| session.overcode),
    ),
    (
        "peer_sent_bytes",
        Counter,
        &["peer"],
        "Bytes sent in this session, as on the link.",
        |s| by_session(s, |session| session.bytes_sent as f64),
    ),
    (
        "peer_packets_sent",
        Counter,
        &["peer"],
        "Packets sent in this session.",
        |s| by_session(s, |session| session.packets_sent as f64),
    ),
    (
        "peer_repairs_sent",
        Counter,
        &["peer"],
        "Repair packets among them.",
        |s| by_session(s, |session| session.repairs_sent as f64),
    ),
    (
        "peer_segments_resent",
        Counter,
        &["peer"],
        "Segments lost in spite of error correction, which went again.",
        |s| by_session(s, |session| session.segments_resent as f64),
    ),
    (
        "peer_packets_received",
        Counter,
        &["peer"],
        "Packets received in this session.",
        |s| by_session(s, |session| session.packets_received as f64),
    ),
    (
        "peer_segments_restored",
        Counter,
        &["peer"],
        "Segments that error correction restored here.",
        |s| by_session(s, |session| session.segments_restored as f64),
    ),
    (
        "peer_outages",
        Counter,
        &["peer"],
        "Times in this session that nothing came from the peer for long.",
        |s| by_session(s, |session| session.outages as f64),
    ),
    (
        "peer_packets_lost",
        Counter,
        &["peer", "cause"],
        "Our packets that did not arrive: lost by the link, at a full queue (congestion), to outages.",
        lost,
    ),
];

/// Counters of the daemon that are not totals.
const NOW: &[&str] = &[
    "flows_open",
    "flows_open_max",
    "ring_bytes",
    "link_senders",
    "tunnel_peers_here",
    "tunnel_peers_by_tcp",
    "tunnel_tcp_connections",
    "custody_memory_bytes",
    "custody_disk_bytes",
    "syns_held",
];

/// Whether a counter of the daemon is told as something else: by site, in another unit, or not at all.
fn told_otherwise(name: &str) -> bool {
    let others = [
        "flows_accepted",
        "up_bytes",
        "down_bytes",
        "link_level_bits",
        "syns_passed_gate",
    ];
    name.starts_with("ended_") || others.contains(&name)
}

/// The daemon's counters: name, kind, meaning.
fn counted() -> impl Iterator<Item = (&'static str, Kind, &'static str)> {
    let names = Stats::default().entries().map(|(name, _)| name);
    let counters = names
        .zip(Stats::MEANINGS)
        .filter(|(name, _)| !told_otherwise(name));
    counters.map(|(name, meaning)| {
        let kind = if NOW.contains(&name) { Gauge } else { Counter };
        (name, kind, meaning.trim())
    })
}

fn one(value: f64) -> Samples {
    vec![(Vec::new(), value)]
}

fn counted_as(status: &Status, name: &str) -> f64 {
    status.counters.get(name).copied().unwrap_or(0) as f64
}

fn named<const N: usize>(values: [(&str, u64); N]) -> Vec<(String, u64)> {
    values
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
}

fn sites(status: &Status) -> impl Iterator<Item = (&str, &Traffic)> {
    let sites = status
        .sites
        .iter()
        .map(|site| (site.name.as_str(), &site.traffic));
    sites.chain(
        status
            .from_peers
            .iter()
            .map(|traffic| (FROM_PEERS, traffic)),
    )
}

fn by_site(status: &Status, value: fn(&Traffic) -> f64) -> Samples {
    let values = sites(status).map(|(name, traffic)| (vec![name.to_owned()], value(traffic)));
    values.collect()
}

fn by_site_and(status: &Status, values: fn(&Traffic) -> Vec<(String, u64)>) -> Samples {
    let each = sites(status).flat_map(|(name, traffic)| {
        let values = values(traffic).into_iter();
        values.map(|(label, value)| (vec![name.to_owned(), label], value as f64))
    });
    each.collect()
}

fn by_peer(status: &Status, value: impl Fn(&PeerStatus) -> Option<f64>) -> Samples {
    let peers = status.peers.iter();
    let values = peers.filter_map(|peer| Some((vec![peer.name.clone()], value(peer)?)));
    values.collect()
}

fn by_session(status: &Status, value: fn(&SessionStatus) -> f64) -> Samples {
    by_peer(status, |peer| peer.session.as_ref().map(value))
}

fn lost(status: &Status) -> Samples {
    let peers = status.peers.iter();
    let lost = peers.filter_map(|peer| Some((&peer.name, peer.session.as_ref()?.lost)));
    let by_cause = lost.flat_map(|(name, lost)| {
        let causes = [
            ("link", lost.link),
            ("congestion", lost.congestion),
            ("outage", lost.outage),
        ];
        causes.map(|(cause, count)| (vec![name.clone(), cause.to_owned()], count as f64))
    });
    by_cause.collect()
}

/// What encodes a status.
#[derive(Debug)]
struct Scrape(Status);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Self(status) = self;
        for (name, kind, labels, meaning, samples) in [WHOLE, BY_SITE, BY_PEER].concat() {
            write(
                &mut encoder,
                (name, kind, meaning),
                labels,
                &samples(status),
            )?;
        }
        for (name, kind, meaning) in counted() {
            let samples = one(counted_as(status, name));
            write(&mut encoder, (name, kind, meaning), &[], &samples)?;
        }
        Ok(())
    }
}

fn write(
    encoder: &mut DescriptorEncoder<'_>,
    (name, kind, meaning): (&str, Kind, &str),
    labels: &[&str],
    samples: &Samples,
) -> fmt::Result {
    let of_type = match kind {
        Counter => MetricType::Counter,
        Gauge => MetricType::Gauge,
    };
    let mut metric = encoder.encode_descriptor(name, meaning, None, of_type)?;
    for (values, value) in samples {
        let values = values.iter().map(String::as_str);
        let labels: Vec<(&str, &str)> = labels.iter().copied().zip(values).collect();
        let labels = labels.as_slice();
        if labels.is_empty() {
            sample(metric, kind, *value)?;
            return Ok(());
        }
        sample(metric.encode_family(&labels)?, kind, *value)?;
    }
    Ok(())
}

fn sample(mut encoder: MetricEncoder<'_>, kind: Kind, value: f64) -> fmt::Result {
    match kind {
        Counter => encoder.encode_counter::<NoLabelSet, f64, f64>(&value, None),
        Gauge => encoder.encode_gauge(&value),
    }
}

/// All metrics of a status, as text.
///
/// # Errors
/// None are known: it is written into memory.
pub fn render(status: Status) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("pepd");
    registry.register_collector(Box::new(Scrape(status)));
    let mut page = String::new();
    text::encode(&mut page, &registry)?;
    Ok(page)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::{super::text::tests::status, *};

    /// As the page has them: a line of a table for each.
    fn lines() -> Vec<String> {
        let metrics = [WHOLE, BY_SITE, BY_PEER].concat().into_iter();
        let labelled =
            metrics.map(|(name, kind, labels, meaning, _)| (name, kind, labels, meaning));
        let counted = counted().map(|(name, kind, meaning)| (name, kind, &[] as &[&str], meaning));
        let line = |(name, kind, labels, meaning): (&str, Kind, &[&str], &str)| {
            let (kind, total) = match kind {
                Counter => ("counter", "_total"),
                Gauge => ("gauge", ""),
            };
            let unit = ["bytes_per_second", "bytes", "seconds", "ratio"].into_iter();
            let mut unit = unit.filter(|unit| name.ends_with(unit));
            let unit = unit.next().unwrap_or("").replace("_per_second", "/s");
            let (labels, meaning) = (labels.join(", "), plain(meaning));
            format!("| `pepd_{name}{total}` | {kind} | {unit} | {labels} | {meaning} |")
        };
        labelled.chain(counted).map(line).collect()
    }

    /// Without links of rustdoc.
    fn plain(meaning: &str) -> String {
        meaning.replace(['[', ']'], "")
    }

    #[test]
    fn the_page_lists_every_metric_and_no_other() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
        let page = fs::read_to_string(path).expect("the page exists");
        let rows = page.lines().filter(|line| line.starts_with("| `"));
        let rows: BTreeSet<_> = rows.map(ToOwned::to_owned).collect();
        let known: BTreeSet<_> = lines().into_iter().collect();
        let missing: Vec<_> = known.difference(&rows).map(String::as_str).collect();
        let unknown: Vec<_> = rows.difference(&known).map(String::as_str).collect();
        assert!(
            missing.is_empty(),
            "missing in docs/metrics.md:\n{}",
            missing.join("\n")
        );
        assert!(
            unknown.is_empty(),
            "not known to the code:\n{}",
            unknown.join("\n")
        );
    }

    #[test]
    fn every_metric_is_written_with_its_labels() {
        let page = render(status()).expect("memory");
        for (name, kind, labels, ..) in [WHOLE, BY_SITE, BY_PEER].concat() {
            let total = if kind == Counter { "_total" } else { "" };
            let begin = match labels.first() {
                Some(label) => format!("\npepd_{name}{total}{{{label}=\""),
                None => format!("\npepd_{name}{total} "),
            };
            assert!(page.contains(&begin), "{begin}: {page}");
        }
        for (name, kind, _) in counted() {
            let total = if kind == Counter { "_total" } else { "" };
            assert!(
                page.contains(&format!("\npepd_{name}{total} ")),
                "{name}: {page}"
            );
        }
        assert!(page.contains("\npepd_flows_open 3"), "{page}");
        assert!(page.ends_with("# EOF\n"), "{page}");
        let names = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let names: Vec<_> = names.filter_map(|line| line.split(' ').next()).collect();
        let once: BTreeSet<_> = names.iter().collect();
        assert_eq!(once.len(), names.len(), "{names:?}");
    }

    #[test]
    fn counters_that_are_no_totals_exist() {
        let known: BTreeSet<_> = Stats::default().entries().map(|(name, _)| name).collect();
        assert!(NOW.iter().all(|name| known.contains(name)));
    }
}
