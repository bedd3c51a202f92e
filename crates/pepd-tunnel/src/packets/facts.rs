//! What is told of packets, and of a peer that does not do its part.

use std::time::Duration;

use boosters::{
    chain::{ChainStats, ReceiverStats},
    wire::Abilities,
};
use pep_core::config::PacketSite;

use super::{Packets, Strangers};

/// Counts of boosters: of which one, of what, and how many.
pub type Counts = Vec<(&'static str, &'static str, u64)>;

/// How packets fare with a peer.
#[derive(Debug, Clone, Default)]
pub struct PacketFacts {
    /// Whether the peer takes some, in the session that there is.
    pub taken: Option<bool>,
    /// The boosters that it has said to understand.
    pub understood: Option<Vec<&'static str>>,
    /// Messages of the peer's that made no sense.
    pub refused: u64,
    /// Packets of the peer's that were dropped.
    pub strangers: Strangers,
    /// Our sites.
    pub sites: Vec<SiteFacts>,
    /// What the peer's chains have sent.
    pub received: Vec<ReceivedFacts>,
}

/// How the packets of a site fare.
#[derive(Debug, Clone)]
pub struct SiteFacts {
    /// Whose they are.
    pub site: String,
    /// What its chain has done.
    pub chain: ChainStats,
    /// What is queued, in bytes.
    pub queued: usize,
    /// For how long the first of it has been.
    pub delay: Duration,
    /// What its boosters have done.
    pub boosters: Counts,
}

/// What a chain of the peer's has sent, in this session. Which site it is there, only the peer knows.
#[derive(Debug, Clone)]
pub struct ReceivedFacts {
    /// The number of the chain there.
    pub chain: u8,
    /// What came of it.
    pub stats: ReceiverStats,
    /// What took its boosters' messages.
    pub boosters: Counts,
}

/// What the peer has to understand for a booster of a site.
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

/// Of a site.
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
    /// Says once in a session which boosters are off as the peer does not understand them.
    pub(super) fn log_missing_peer_site(&mut self) {
        let Some(abilities) = self.exchange.abilities().filter(|_| !self.told) else {
            return;
        };
        self.told = true;
        for need in &self.needs {
            let Need { site, booster, .. } = need;
            if abilities & need.ability == 0 {
                let peer = &self.peer;
                tracing::warn!(
                    peer,
                    site,
                    booster,
                    "a booster of a site stays off: the pepd of the peer does not know it"
                );
            }
        }
    }

    /// Says now and then that the peer sends what no site takes: without a word of it, what is missing is hard to find.
    pub(super) fn log_strangers(&mut self, now: Duration) {
        let Some((packet, count)) = self.admission.poll_line(now) else {
            return;
        };
        let peer = &self.peer;
        tracing::warn!(
            peer,
            count,
            "packets of the peer are dropped, the last one {packet}: no site takes what answers them; the peer's configuration has a site of mode \"packet\" that this one lacks"
        );
    }

    /// How packets fare. `taken`: whether the peer takes some, in the session that there is.
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
        let facts = chains.map(|(chain, site)| {
            let mut boosters = Counts::new();
            chain.counters(&mut |booster, count, value| boosters.push((booster, count, value)));
            let (queued, delay) = chain.queued(now);
            SiteFacts {
                site: site.name.clone(),
                chain: chain.stats(),
                queued,
                delay,
                boosters,
            }
        });
        facts.collect()
    }

    fn received_facts(&self) -> Vec<ReceivedFacts> {
        let receivers = self.exchange.receivers();
        let facts = receivers.map(|(chain, receiver)| {
            let mut boosters = Counts::new();
            // They are on whenever something comes for them.
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
