//! Packets of sites in mode `packet`, between their interfaces and the session with their peer.
//!
//! ```text
//!   host --> kernel --mark--> TUN --> Tap --offer------> Exchange --next----> session ==> peer
//!   host <-- kernel <-------- TUN <-- Tap <--poll_host-- Exchange <-packet-- session <== peer
//! ```
//!
//! While the peer is down or takes no packets, pepd returns packets through the pass-through TUN.
//! The kernel then forwards them as if there were no pepd.

mod admission;
mod facts;
pub(super) mod groups;
pub(super) mod runs;
pub(super) mod settings;

pub use admission::{Stranger, Strangers};
pub use facts::{PacketFacts, ReceivedFacts, SiteFacts};

use std::time::Duration;

use admission::Admission;
use boosters::{
    chain::WAITING_MIN, ecn::Ecn as Mark, exchange::Exchange, fec::Backend, rule::Path,
};
use facts::Need;
use pep_core::{
    config::{Config, PacketSite, Peer},
    fragments::{Fragments, Reassembly},
    pace::{Line, Lines, Pace},
    site::{Answers, SiteId, WithoutPeer},
};
use tunnel::{
    class::Class,
    compression::Expansion,
    ecn::Ecn,
    session::{PacketQueue, Session},
    store::NextPacket,
};

/// Interval at which boosters get the state of the path while there are packets.
pub(super) const LOOK: Duration = Duration::from_millis(20);

/// Maximum of chains per peer, as for sites of mode `packet`. A receiver's reordering, delay and
/// reassembly buffers take up to 11 MiB per chain, and nothing before a packet comes.
const CHANNELS: u8 = 16;
/// Minimum bytes for which a packet of the peer counts: short ones cost as much time.
const COUNTED_MIN: usize = 512;
/// Maximum bytes of packets of the peer that wait for hosts, where a packet counts for 1 KiB or
/// more.
const WAITING_MAX: usize = 8 << 20;
/// First channel of receivers' replies ([`boosters::exchange`]).
const REPLIES: u8 = 64;

/// Minimum of silence after which packets pass, even with shorter deadlines: less is a short
/// outage. A connection may break on the change if NAT gives passed packets another address.
const DOWN_AFTER: Duration = Duration::from_secs(1);

/// Pace of log lines that the peer causes by its sessions.
const LINES: Pace = Pace::new(Duration::from_secs(10), 2);

/// State between the interfaces of a peer's sites and its session.
#[derive(Debug)]
pub(super) struct Packets {
    /// Name of the peer.
    peer: String,
    /// Boosters of its sites that need the peer's support.
    needs: Vec<Need>,
    /// Missing support was logged in this session.
    logged: bool,
    /// Pace of lines on missing support, and on a peer that takes no packets: the peer decides how
    /// often it begins a session.
    lines: [Lines; 2],
    exchange: Exchange,
    /// Sites by chain number.
    sites: Vec<Carried>,
    /// Queues of the current session.
    queues: Option<Queues>,
    looked: Duration,
    /// Time of the last offer to the session.
    settled: Duration,
    admission: Admission,
    /// Pace of messages that become many packets, or long ones: 80 bytes of a peer may become 1,024
    /// acknowledgements, or a packet of 64 KiB.
    expansion: Expansion,
    /// Time until which packets exceed the pace.
    paced_until: Duration,
    fragments: Fragments,
    /// Messages on channels that no peer uses, those beyond the pace or the maximum, and fragments
    /// that may not go to the kernel.
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
    /// Silence of the peer after which packets pass.
    patience: Duration,
    /// Maximum of bytes that boosters add to a packet.
    overhead: usize,
}

/// Queue numbers of the session.
#[derive(Debug)]
struct Queues {
    words: PacketQueue,
    chains: Vec<PacketQueue>,
}

/// Handling of a host's packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// The packet is carried.
    Yes,
    /// The kernel forwards the packet.
    Pass,
    /// The packet is dropped because the peer is down.
    Dropped,
}

/// A packet for a host; `None` for one that may not go to the kernel, as these take time too.
pub(super) type ForHost = Option<Vec<u8>>;

impl Packets {
    /// Returns the trace of all boosters.
    pub(crate) fn trace(&mut self) -> &mut trace::Trace {
        self.exchange.trace()
    }

    /// Creates the state of a peer's sites in mode `packet`, if it has any.
    pub(super) fn new(config: &Config, peer: usize, seed: u64) -> Option<Self> {
        let sites = config.packet_sites();
        let sites: Vec<_> = sites.filter(|site| site.peer == Some(peer)).collect();
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
        let name = &config.peers[peer].name;
        let code = settings::decoder(sites.iter().map(|site| &site.policy.boost));
        if code == Backend::Reference {
            let peer = name;
            tracing::info!(
                peer,
                "block codes are computed by {code}, as `boost.fec.code` says"
            );
        }
        let needs = sites.iter().flat_map(|site| facts::needs(site));
        Some(Self {
            peer: name.clone(),
            needs: needs.collect(),
            logged: false,
            lines: [Lines::new(LINES); 2],
            exchange: Exchange::new(sites.iter().enumerate().map(chain).collect()).with_code(code),
            sites: sites.iter().map(carried).collect(),
            queues: None,
            looked: Duration::ZERO,
            settled: Duration::ZERO,
            admission: Admission::new(Peer::reach(&config.peers, peer)),
            expansion: Expansion::default(),
            paced_until: Duration::ZERO,
            fragments: Fragments::new(reassembly()),
            refused: 0,
        })
    }

    /// Returns the chain of a site.
    pub(super) fn chain_of(&self, site: SiteId) -> Option<usize> {
        self.sites.iter().position(|carried| carried.id == site)
    }

    /// Prepares for a new session, possibly with another process of the peer.
    pub(super) fn renew(&mut self) {
        self.queues = None;
        self.exchange.renew();
    }

    /// Opens the queues in a new session.
    pub(super) fn begin(&mut self, now: Duration, session: &mut Session) {
        (self.queues, self.logged) = (None, false);
        if !session.takes_packets() {
            let (peer, sites) = (&self.peer, self.sites.len());
            let Some(Line { left_out }) = self.lines[0].next(now) else {
                return;
            };
            tracing::warn!(
                peer,
                sites,
                left_out,
                "peer takes no packets: add a site of mode \"packet\" there; until then `packet.on_peer_loss` applies"
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

    /// Ends the session.
    pub(super) fn end(&mut self) {
        self.queues = None;
    }

    /// Takes a packet of a host. `silence` is the silence of the peer within a session: `None`
    /// while the peer is heard, [`Duration::MAX`] while it is down.
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
        // Sites that drop keep their packets waiting while there is a session: late packets are
        // dropped anyway.
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

    /// Runs due timers, and offers ready packets to the session.
    pub(super) fn settle(&mut self, now: Duration, session: Option<&mut Session>) {
        self.settled = now;
        // Timers release packets as messages do.
        let may_release = !self.is_over(now);
        if may_release && self.exchange.deadline().is_some_and(|at| at <= now) {
            self.count(now, 0, |exchange, site| exchange.on_time(now, site));
        }
        self.log_strangers(now);
        if self.queues.is_some() {
            self.log_missing_peer_site(now);
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

    /// Returns the time of the next call of [`settle`](Self::settle). The session knows what is due
    /// already: it sends when it can.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let words = self.exchange.word_due().filter(|_| self.queues.is_some());
        let words = words.filter(|at| *at > self.settled);
        let timers = self.exchange.deadline();
        let timers = timers.map(|at| at.max(self.paced_until));
        [timers, words].into_iter().flatten().min()
    }

    /// Returns the next packet for a host, and the chain of its interface.
    pub(super) fn poll_host(&mut self, now: Duration) -> Option<(usize, ForHost)> {
        let (chain, packet) = self.exchange.poll_host()?;
        let may_go = self.fragments.admit(now, &packet.bytes);
        self.refused += u64::from(!may_go);
        Some((chain, may_go.then_some(packet.bytes)))
    }

    /// Returns the packets of the peer dropped since the last call: martian, unmatched and
    /// forbidden.
    pub(super) fn take_strangers(&mut self) -> [u64; 3] {
        self.admission.take_counts()
    }

    /// Writes the next message of a session's queue.
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

    /// Takes a message of the peer. It is dropped while packets of earlier ones exceed the pace, or
    /// too many of them wait.
    pub(super) fn take(&mut self, now: Duration, channel: u8, outer: Ecn, message: &[u8]) {
        if self.is_over(now) || (CHANNELS..REPLIES).contains(&channel) {
            self.refused += 1;
            return;
        }
        self.count(now, message.len(), |exchange, site| {
            exchange.handle(now, channel, message, inside(outer), site);
        });
    }

    /// Returns whether packets exceed the pace, or too many wait for hosts.
    fn is_over(&self, now: Duration) -> bool {
        now < self.paced_until || self.exchange.waiting() >= WAITING_MAX
    }

    /// Runs the exchange, and counts the bytes of packets that come out of `packed` bytes of the
    /// peer.
    fn count(
        &mut self,
        now: Duration,
        packed: usize,
        run: impl FnOnce(&mut Exchange, &mut dyn FnMut(&[u8]) -> Option<usize>),
    ) {
        let (sites, admission) = (&self.sites, &mut self.admission);
        let (mut bytes, mut admitted) = (0, 0);
        let before = self.exchange.waiting();
        run(&mut self.exchange, &mut |packet| {
            bytes += packet.len().max(COUNTED_MIN);
            let site = admission.site_of(sites, packet)?;
            admitted += packet.len().max(WAITING_MIN);
            Some(site)
        });
        // Boosters may make many of one, each a short one.
        let made = self.exchange.waiting().saturating_sub(before + admitted);
        let bytes = bytes + made / WAITING_MIN * COUNTED_MIN;
        let pause = self.expansion.wait(now, packed as u64, bytes as u64);
        self.paced_until = self.paced_until.max(now + pause);
    }

    /// Returns the longest packet of each chain that is carried in one piece, given the maximum
    /// message length.
    pub(super) fn mtus(&self, room: usize) -> impl Iterator<Item = usize> {
        let sites = self.sites.iter();
        sites.map(move |site| room.saturating_sub(site.overhead))
    }
}

/// Returns the kernel's settings for reassembly; the defaults for those that it does not tell.
fn reassembly() -> Reassembly {
    let number = |path| pepd_sys::sysctl(path)?.parse().ok();
    let seconds = |path| number(path).map(Duration::from_secs);
    let default = Reassembly::default();
    let kept6 = seconds("net/netfilter/nf_conntrack_frag6_timeout");
    Reassembly {
        kept: seconds("net/ipv4/ipfrag_time").unwrap_or(default.kept),
        kept6: kept6.unwrap_or(default.kept6),
        distance: number("net/ipv4/ipfrag_max_dist").unwrap_or(default.distance),
    }
}

/// Returns the state of the path for boosters.
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
pub(crate) mod tests;
