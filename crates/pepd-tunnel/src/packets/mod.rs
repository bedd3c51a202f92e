//! Packets of sites in mode `packet`: what is between their interfaces and the session with their peer.
//!
//! ```text
//!   host --> kernel --mark--> TUN of the site --> Tap --offer------> Exchange --next_packet--> session ==> peer
//!   host <-- kernel <-------- TUN of the site <-- Tap <--poll_host-- Exchange <----packet----- session <== peer
//! ```
//!
//! While the peer is gone, or takes no packets, what comes out of a TUN comes in again by one for all that passes: the kernel then
//! forwards it as if there were no pepd.

mod admission;
mod facts;
pub(super) mod groups;
pub(super) mod runs;
mod settings;

pub use admission::{Stranger, Strangers};
pub use facts::{PacketFacts, ReceivedFacts, SiteFacts};

use std::time::Duration;

use admission::Admission;
use boosters::{ecn::Ecn as Mark, exchange::Exchange, rule::Path};
use facts::Need;
use pep_core::{
    config::{Config, PacketSite},
    site::{Answers, SiteId, WithoutPeer},
};
use tunnel::{
    class::Class,
    ecn::Ecn,
    session::{PacketQueue, Session},
    store::NextPacket,
};

/// How often boosters hear of the path while there are packets.
const LOOK: Duration = Duration::from_millis(20);

/// Chains that a peer may send by: as many as it may have sites of mode `packet`. What a receiver puts in order, holds back and puts
/// together is some 11 MiB at most for each, and nothing until something comes.
const CHANNELS: u8 = 16;
/// The first channel of what receivers answer ([`boosters::exchange`]).
const REPLIES: u8 = 64;

/// The least silence after which packets pass, however soon they would be late: shorter ones are winks. A connection may not live
/// through the change, where NAT gives what passes another address.
const DOWN_AFTER: Duration = Duration::from_secs(1);

/// What is between the interfaces of a peer's sites and its session.
#[derive(Debug)]
pub(super) struct Packets {
    /// The peer's name.
    peer: String,
    /// What the peer has to understand for the boosters of its sites.
    needs: Vec<Need>,
    /// It was told, in this session, what it does not understand.
    told: bool,
    exchange: Exchange,
    /// By the numbers of their chains.
    sites: Vec<Carried>,
    /// Of the session that there is.
    queues: Option<Queues>,
    looked: Duration,
    /// When the session was last told what there is to be sent.
    settled: Duration,
    admission: Admission,
    /// Messages on channels that no peer has.
    refused: u64,
}

/// A site whose packets are carried.
#[derive(Debug)]
struct Carried {
    id: SiteId,
    name: String,
    class: Class,
    answers: Answers,
    without_peer: WithoutPeer,
    /// Packets pass once the peer has been silent for so long.
    patience: Duration,
    /// What boosters add to a packet at most.
    overhead: usize,
}

/// Where the session asks for what.
#[derive(Debug)]
struct Queues {
    words: PacketQueue,
    chains: Vec<PacketQueue>,
}

/// What becomes of a packet of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// It is carried.
    Yes,
    /// The kernel is to forward it.
    Pass,
    /// It is dropped, as the peer is gone.
    Dropped,
}

impl Packets {
    /// The trace of all boosters.
    pub(crate) fn trace(&mut self) -> &mut trace::Trace {
        self.exchange.trace()
    }

    /// Of the sites of a peer in mode `packet`, if it has any.
    pub(super) fn new(config: &Config, peer: usize, seed: u64) -> Option<Self> {
        let sites = config.packet_sites();
        let sites: Vec<_> = sites.filter(|site| site.peer == peer).collect();
        if sites.is_empty() {
            return None;
        }
        let rate = config.peers[peer].rate;
        let chain = |(number, site): (usize, &PacketSite<'_>)| {
            settings::chain(site.policy, rate, seed.wrapping_add(number as u64))
        };
        let carried = |PacketSite {
                           id, site, policy, ..
                       }: &PacketSite<'_>| Carried {
            id: *id,
            name: site.name.clone(),
            class: crate::class(site.class),
            answers: Answers::new(&site.matcher),
            without_peer: policy.on_peer_loss,
            patience: policy.deadline.max(DOWN_AFTER),
            overhead: settings::overhead(&policy.boost),
        };
        let needs = sites.iter().flat_map(|site| facts::needs(site));
        Some(Self {
            peer: config.peers[peer].name.clone(),
            needs: needs.collect(),
            told: false,
            exchange: Exchange::new(sites.iter().enumerate().map(chain).collect()),
            sites: sites.iter().map(carried).collect(),
            queues: None,
            looked: Duration::ZERO,
            settled: Duration::ZERO,
            admission: Admission::default(),
            refused: 0,
        })
    }

    /// Which chain a site has.
    pub(super) fn chain_of(&self, site: SiteId) -> Option<usize> {
        self.sites.iter().position(|carried| carried.id == site)
    }

    /// A session begins: perhaps with another process of the peer's.
    pub(super) fn renew(&mut self) {
        self.queues = None;
        self.exchange.renew();
    }

    /// The session is there.
    pub(super) fn begin(&mut self, session: &mut Session) {
        (self.queues, self.told) = (None, false);
        if !session.takes_packets() {
            let (peer, sites) = (&self.peer, self.sites.len());
            tracing::warn!(
                peer,
                sites,
                "the peer takes no packets: those of its sites of mode \"packet\" go as `packet.on_peer_loss` says; it needs such a site as well"
            );
            return;
        }
        let words = session.open_packets(Class::Interactive, 0);
        let chains = self.sites.iter();
        let chains = chains.map(|site| session.open_packets(site.class, site.id.0.into()));
        let chains: Result<Vec<_>, _> = chains.collect();
        if let (Ok(words), Ok(chains)) = (words, chains) {
            self.queues = Some(Queues { words, chains });
        }
    }

    /// There is no session any more.
    pub(super) fn end(&mut self) {
        self.queues = None;
    }

    /// Takes a packet of a host. `silence`: for how long the peer has not been heard, though there is a session; `None` while it is
    /// heard, and no end while it is gone.
    pub(super) fn offer(
        &mut self,
        now: Duration,
        chain: usize,
        packet: &[u8],
        silence: Option<Duration>,
    ) -> Taken {
        let Some(site) = self.sites.get(chain) else {
            return Taken::Pass;
        };
        // Those that may not pass wait, as long as there is somebody to wait for: what is late is dropped anyway.
        let passes = site.without_peer == WithoutPeer::Pass;
        let patience = if passes { site.patience } else { Duration::MAX };
        if self.queues.is_some() && silence.is_none_or(|silence| silence < patience) {
            self.exchange.from_host(now, chain, packet);
            return Taken::Yes;
        }
        match site.without_peer {
            WithoutPeer::Pass => Taken::Pass,
            WithoutPeer::Drop => Taken::Dropped,
        }
    }

    /// Does what is due, and tells the session what there is to be sent.
    pub(super) fn settle(&mut self, now: Duration, session: Option<&mut Session>) {
        self.settled = now;
        if self.exchange.deadline().is_some_and(|at| at <= now) {
            let (sites, admission) = (&self.sites, &mut self.admission);
            let site = &mut |packet: &[u8]| admission.site_of(sites, packet);
            self.exchange.on_time(now, site);
        }
        self.log_strangers(now);
        if self.queues.is_some() {
            self.log_missing_peer_site();
        }
        let (Some(session), Some(queues)) = (session, &self.queues) else {
            return;
        };
        if now >= self.looked + LOOK {
            self.looked = now;
            self.exchange.set_path(now, &path(session));
        }
        session.set_packets_ready(queues.words, self.exchange.has_word(now));
        for (chain, queue) in queues.chains.iter().enumerate() {
            session.set_packets_ready(*queue, self.exchange.has_message(chain));
        }
    }

    /// When [`settle`](Self::settle) wants to be called again. Of what was due then the session knows: it says itself when it sends,
    /// and while nothing can be sent it does not.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let words = self.exchange.word_due().filter(|_| self.queues.is_some());
        let words = words.filter(|at| *at > self.settled);
        [self.exchange.deadline(), words]
            .into_iter()
            .flatten()
            .min()
    }

    /// The next packet for a host, and the chain whose interface it is to come in by.
    pub(super) fn poll_host(&mut self) -> Option<(usize, Vec<u8>)> {
        let (chain, packet) = self.exchange.poll_host()?;
        Some((chain, packet.bytes))
    }

    /// How many packets of the peer were dropped since this was last asked for, as no router lets them go on, and as no site has to do with them.
    pub(super) fn take_strangers(&mut self) -> [u64; 2] {
        self.admission.take_counts()
    }

    /// Writes what is next of a queue of the session's.
    pub(super) fn next(
        &mut self,
        queue: PacketQueue,
        now: Duration,
        room: usize,
        out: &mut Vec<u8>,
    ) -> Option<NextPacket> {
        let queues = self.queues.as_ref()?;
        if queue == queues.words {
            self.exchange.poll_word(now, room + 1, out).then_some(())?;
            return Some(NextPacket {
                more: self.exchange.has_word(now),
                ecn: Ecn::Ect0,
            });
        }
        let chain = queues.chains.iter().position(|chain| *chain == queue)?;
        let mark = self.exchange.poll_message(now, chain, room + 1, out)?;
        Some(NextPacket {
            more: self.exchange.has_message(chain),
            ecn: outside(mark),
        })
    }

    /// Takes a message of the peer's.
    pub(super) fn take(&mut self, now: Duration, channel: u8, outer: Ecn, message: &[u8]) {
        if (CHANNELS..REPLIES).contains(&channel) {
            self.refused += 1;
            return;
        }
        let (sites, admission) = (&self.sites, &mut self.admission);
        let site = &mut |packet: &[u8]| admission.site_of(sites, packet);
        self.exchange
            .handle(now, channel, message, inside(outer), site);
    }

    /// The longest packet of each chain that is carried in one piece, given how long messages may be.
    pub(super) fn mtus(&self, room: usize) -> impl Iterator<Item = usize> {
        let sites = self.sites.iter();
        sites.map(move |site| room.saturating_sub(site.overhead))
    }
}

/// What the boosters hear of the path.
fn path(session: &Session) -> Path {
    let state = session.path();
    Path {
        loss: session.link_loss(),
        counts: session.measures().sent,
        congested: session.causes().congestion,
        rate: state.link_rate,
        peer_rate: session.return_rate(),
        rtt: state.rtt,
        queue: Duration::ZERO,
        room: session.packet_room(),
        abilities: 0,
    }
}

fn inside(mark: Ecn) -> Mark {
    match mark {
        Ecn::NotEct => Mark::NotEct,
        Ecn::Ect1 => Mark::Ect1,
        Ecn::Ect0 => Mark::Ect0,
        Ecn::Ce => Mark::Ce,
    }
}

fn outside(mark: Mark) -> Ecn {
    match mark {
        Mark::NotEct => Ecn::NotEct,
        Mark::Ect1 => Ecn::Ect1,
        Mark::Ect0 => Ecn::Ect0,
        Mark::Ce => Ecn::Ce,
    }
}

#[cfg(test)]
mod tests;
