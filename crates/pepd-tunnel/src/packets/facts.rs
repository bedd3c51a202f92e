//! State of packets for status requests, and log lines on peers that lack support.

use std::time::Duration;

use boosters::{
    chain::{Chain, ChainStats, ReceiverStats},
    wire::Abilities,
};
use pep_core::config::PacketSite;

use super::{Packets, Strangers, admission::Cause};

/// Counters of boosters: booster, counter, value.
pub type Counts = Vec<(&'static str, &'static str, u64)>;

/// State of packets with a peer.
#[derive(Debug, Clone, Default)]
pub struct PacketFacts {
    /// True if the peer takes packets in the current session; `None` without one.
    pub taken: Option<bool>,
    /// Boosters that the peer has announced.
    pub understood: Option<Vec<&'static str>>,
    /// Invalid messages of the peer.
    pub refused: u64,
    /// Dropped packets of the peer.
    pub strangers: Strangers,
    /// Local sites.
    pub sites: Vec<SiteFacts>,
    /// Packets from the peer's chains.
    pub received: Vec<ReceivedFacts>,
}

/// State of the packets of a site.
#[derive(Debug, Clone)]
pub struct SiteFacts {
    /// Name of the site.
    pub site: String,
    /// Counters of its chain.
    pub chain: ChainStats,
    /// Queued bytes.
    pub queued: usize,
    /// Age of the first queued packet.
    pub delay: Duration,
    /// Counters of its boosters.
    pub boosters: Counts,
}

impl SiteFacts {
    pub(crate) fn new(site: &str, chain: &Chain, now: Duration) -> Self {
        let mut boosters = Counts::new();
        chain.counters(&mut |booster, count, value| boosters.push((booster, count, value)));
        let (queued, delay) = chain.queued(now);
        Self {
            site: site.to_owned(),
            chain: chain.stats(),
            queued,
            delay,
            boosters,
        }
    }
}

/// Packets from a chain of the peer in this session. Only the peer knows the chain's site.
#[derive(Debug, Clone)]
pub struct ReceivedFacts {
    /// Number of the chain at the peer.
    pub chain: u8,
    /// Counters of the receiver.
    pub stats: ReceiverStats,
    /// Counters of the receiving boosters.
    pub boosters: Counts,
}

/// A booster of a site that needs the peer's support.
#[derive(Debug, Clone)]
pub(super) struct Need {
    site: String,
    booster: &'static str,
    ability: u32,
}

/// Boosters whose messages the peer has to understand.
const UNDERSTOOD: [(&str, u32); 5] = [
    ("fec", Abilities::FEC),
    ("arq", Abilities::ARQ),
    ("ack_reconstruction", Abilities::ACKS),
    ("jitter", Abilities::JITTER),
    ("compress", Abilities::COMPRESS),
];

/// Returns the needs of a site.
pub(super) fn needs(site: &PacketSite<'_>) -> impl Iterator<Item = Need> + use<> {
    let boost = &site.policy.boost;
    let asked = [
        boost.fec.is_some(),
        boost.arq.is_some(),
        boost.ack_reconstruction.is_some(),
        boost.jitter.is_some(),
        boost.compress.is_some(),
    ];
    let name = site.site.name.clone();
    let all = UNDERSTOOD.into_iter().zip(asked);
    let all = all.filter(|(_, asked)| *asked);
    all.map(move |((booster, ability), _)| Need {
        site: name.clone(),
        booster,
        ability,
    })
}

impl Packets {
    /// Logs once per session which boosters are off because the peer does not support them.
    pub(super) fn log_missing_peer_site(&mut self, now: Duration) {
        let Some(abilities) = self.exchange.abilities().filter(|_| !self.logged) else {
            return;
        };
        self.logged = true;
        let lacks = |need: &Need| abilities & need.ability == 0;
        if !self.needs.iter().any(lacks) || self.lines[1].next(now).is_none() {
            return;
        }
        for need in &self.needs {
            let Need { site, booster, .. } = need;
            if lacks(need) {
                let peer = &self.peer;
                tracing::warn!(
                    peer,
                    site,
                    booster,
                    "booster off: the peer's pepd does not support it"
                );
            }
        }
    }

    /// Logs periodically which packets of the peer are dropped: a site or a network missing at this
    /// end is hard to find otherwise.
    pub(super) fn log_strangers(&mut self, now: Duration) {
        let peer = &self.peer;
        if let Some((packet, count)) = self.admission.poll_line(now, Cause::Unmatched) {
            tracing::warn!(
                peer,
                count,
                "packets of the peer dropped (latest: {packet}): no local site carries their \
                 answers; add a site of mode \"packet\" here that matches the answers"
            );
        }
        if let Some((packet, count)) = self.admission.poll_line(now, Cause::Forbidden) {
            tracing::warn!(
                peer,
                count,
                "packets of the peer dropped (latest: {packet}): `from` and `to` of [peer.{peer}] \
                 do not permit them, or an address is that of another peer's host"
            );
        }
    }

    /// Returns the state of packets. `taken` tells whether the peer takes packets in the current
    /// session.
    pub(crate) fn facts(&self, now: Duration, taken: Option<bool>) -> PacketFacts {
        let understood = self.exchange.abilities().map(|abilities| {
            let all = UNDERSTOOD.into_iter();
            let all = all.filter(|(_, ability)| abilities & ability != 0);
            all.map(|(booster, _)| booster).collect()
        });
        PacketFacts {
            taken,
            understood,
            refused: self.refused + self.exchange.refused(),
            strangers: self.admission.strangers().clone(),
            sites: self.site_facts(now),
            received: self.received_facts(),
        }
    }

    fn site_facts(&self, now: Duration) -> Vec<SiteFacts> {
        let chains = self.exchange.chains().iter().zip(&self.sites);
        let facts = chains.map(|(chain, site)| SiteFacts::new(&site.name, chain, now));
        facts.collect()
    }

    fn received_facts(&self) -> Vec<ReceivedFacts> {
        let receivers = self.exchange.receivers();
        let facts = receivers.map(|(chain, receiver)| {
            let mut boosters = Counts::new();
            // Receiving boosters are always on.
            receiver.counters(&mut |booster, count, value| {
                if !["on", "switched_on"].contains(&count) {
                    boosters.push((booster, count, value));
                }
            });
            ReceivedFacts {
                chain,
                stats: receiver.stats(),
                boosters,
            }
        });
        facts.collect()
    }
}
