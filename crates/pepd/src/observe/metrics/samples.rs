//! Samples of a metric, by its object, which determines its labels.

use std::collections::BTreeMap;

use pepd_api::status::{
    PacketStatus, PeerStatus, ReceivedStatus, SessionStatus, SiteStatus, Status, Traffic,
};

/// Site name for flows that peers have sent; no site can have it.
const FROM_PEERS: &str = "(from peers)";

/// Values of the labels, and the value.
pub(super) type Sample = (Vec<String>, f64);

/// A value in parts, each with its name.
pub(super) type Parts = Vec<(String, u64)>;

/// Object of a metric.
#[derive(Debug, Clone, Copy)]
pub(super) enum Of {
    /// The process, the link, the limits.
    Whole(fn(&Status) -> f64),
    /// The program, with its version as label.
    Version,
    /// Each site.
    Site(fn(&SiteStatus) -> f64),
    /// The flows of each site, and those sent by peers.
    Flows(fn(&Traffic) -> f64),
    /// The flows of each site in parts, distinguished by a label of this name.
    FlowsBy(&'static str, fn(&Traffic) -> Parts),
    /// Each peer.
    Peer(fn(&PeerStatus) -> f64),
    /// The session with each peer, if one exists.
    Session(fn(&SessionStatus) -> f64),
    /// The session with each peer, in parts.
    SessionBy(&'static str, fn(&SessionStatus) -> Parts),
    /// The packets of each site in mode `packet` or `boost`, in parts; the latter have an empty
    /// peer.
    PacketsBy(&'static str, fn(&PacketStatus) -> Parts),
    /// Each counter of each booster of these sites.
    Boosters,
    /// The packets received by each chain of each peer, in parts.
    ReceivedBy(&'static str, fn(&ReceivedStatus) -> Parts),
    /// Each counter of each receiving booster of these chains.
    ReceivedBoosters,
    /// A counter of the daemon, by name.
    Counter(&'static str),
}

impl Of {
    /// Returns the names of the labels.
    pub(super) fn labels(self) -> Vec<&'static str> {
        match self {
            Self::Whole(_) | Self::Counter(_) => vec![],
            Self::Version => vec!["version"],
            Self::Site(_) | Self::Flows(_) => vec!["site"],
            Self::FlowsBy(label, _) => vec!["site", label],
            Self::Peer(_) | Self::Session(_) => vec!["peer"],
            Self::SessionBy(label, _) => vec!["peer", label],
            Self::PacketsBy(label, _) => vec!["peer", "site", label],
            Self::Boosters => vec!["peer", "site", "booster", "counter"],
            Self::ReceivedBy(label, _) => vec!["peer", "chain", label],
            Self::ReceivedBoosters => vec!["peer", "chain", "booster", "counter"],
        }
    }

    /// Returns all samples of a status.
    pub(super) fn samples(self, status: &Status) -> Vec<Sample> {
        match self {
            Self::Whole(value) => vec![(vec![], value(status))],
            Self::Counter(name) => vec![(vec![], counter(status, name))],
            Self::Version => vec![(vec![status.version.clone()], 1.0)],
            Self::Site(value) => {
                let sites = status.sites.iter();
                one_each(sites.map(|site| (site.name.as_str(), site)), value)
            }
            Self::Flows(value) => one_each(traffic(status), value),
            Self::FlowsBy(_, parts) => some_each(traffic(status), parts),
            Self::Peer(value) => {
                let peers = status.peers.iter();
                one_each(peers.map(|peer| (peer.name.as_str(), peer)), value)
            }
            Self::Session(value) => one_each(sessions(status), value),
            Self::SessionBy(_, parts) => some_each(sessions(status), parts),
            Self::PacketsBy(_, parts) => {
                let all = packets(status).flat_map(|(peer, packets)| {
                    let of = move |(part, value)| {
                        let labels = vec![peer.to_owned(), packets.site.clone(), part];
                        (labels, value as f64)
                    };
                    parts(packets).into_iter().map(of)
                });
                all.collect()
            }
            Self::Boosters => {
                let all = packets(status);
                let all = all.map(|(peer, site)| (peer, site.site.clone(), &site.boosters));
                boosters(all)
            }
            Self::ReceivedBy(_, parts) => {
                let all = received(status).flat_map(|(peer, chain)| {
                    let of = move |(part, value)| {
                        let labels = vec![peer.to_owned(), chain.chain.to_string(), part];
                        (labels, value as f64)
                    };
                    parts(chain).into_iter().map(of)
                });
                all.collect()
            }
            Self::ReceivedBoosters => {
                let all = received(status);
                let all = all.map(|(peer, of)| (peer, of.chain.to_string(), &of.boosters));
                boosters(all)
            }
        }
    }
}

/// Returns the value of a counter of the daemon.
pub(super) fn counter(status: &Status, name: &str) -> f64 {
    status.counters.get(name).copied().unwrap_or(0) as f64
}

/// Returns parts with fixed names.
pub(super) fn named<const N: usize>(parts: [(&str, u64); N]) -> Parts {
    parts.map(|(name, value)| (name.to_owned(), value)).to_vec()
}

fn traffic(status: &Status) -> impl Iterator<Item = (&str, &Traffic)> {
    let sites = status.sites.iter();
    let sites = sites.map(|site| (site.name.as_str(), &site.traffic));
    let from_peers = status.from_peers.iter();
    sites.chain(from_peers.map(|traffic| (FROM_PEERS, traffic)))
}

fn sessions(status: &Status) -> impl Iterator<Item = (&str, &SessionStatus)> {
    let peers = status.peers.iter();
    peers.filter_map(|peer| Some((peer.name.as_str(), peer.session.as_ref()?)))
}

fn packets(status: &Status) -> impl Iterator<Item = (&str, &PacketStatus)> {
    let sites = status.packet_sites();
    sites.map(|(peer, packets)| (peer.map_or("", |peer| peer.name.as_str()), packets))
}

fn received(status: &Status) -> impl Iterator<Item = (&str, &ReceivedStatus)> {
    let peers = status.peers.iter();
    peers.flat_map(|peer| {
        let chains = peer.packets_received.iter();
        chains.map(|chain| (peer.name.as_str(), chain))
    })
}

/// Returns the samples of the boosters of each site or chain of a peer.
fn boosters<'a>(
    all: impl Iterator<Item = (&'a str, String, &'a BTreeMap<String, BTreeMap<String, u64>>)>,
) -> Vec<Sample> {
    let mut samples = Vec::new();
    for (peer, of, boosters) in all {
        for (booster, counts) in boosters {
            for (what, value) in counts {
                let labels = [peer, &of, booster, what].map(str::to_owned);
                samples.push((labels.to_vec(), *value as f64));
            }
        }
    }
    samples
}

fn one_each<'a, T: 'a>(
    all: impl Iterator<Item = (&'a str, &'a T)>,
    value: fn(&T) -> f64,
) -> Vec<Sample> {
    all.map(|(name, it)| (vec![name.to_owned()], value(it)))
        .collect()
}

fn some_each<'a, T: 'a>(
    all: impl Iterator<Item = (&'a str, &'a T)>,
    parts: fn(&T) -> Parts,
) -> Vec<Sample> {
    let each = all.flat_map(|(name, it)| {
        let parts = parts(it).into_iter();
        parts.map(|(part, value)| (vec![name.to_owned(), part], value as f64))
    });
    each.collect()
}
