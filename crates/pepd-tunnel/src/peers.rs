//! State of peers for other threads than the tunnels' own.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use super::packets::PacketFacts;
use parking_lot::Mutex;
use pep_core::{
    config::{Config, OnPeerLoss},
    site::{Mode, SiteId, WithoutPeer},
};
use pepd_sys::leg::Family;
use tokio::sync::watch;
use tunnel::{
    cause::CauseCounts,
    endpoint::{Carrier, Remote},
    session::{PathState, SessionStats, Unreached},
};

/// State of the session with a peer, at most a second old.
#[derive(Debug, Clone, Copy)]
pub struct SessionFacts {
    /// Transport of the session.
    pub carrier: Option<Carrier>,
    /// State of the path.
    pub path: PathState,
    /// Counters of the session.
    pub stats: SessionStats,
    /// Causes of lost packets.
    pub causes: CauseCounts,
}

/// Address of a peer, and bytes exchanged with it in all sessions since the process started; at
/// most a second old.
#[derive(Debug, Clone, Copy, Default)]
pub struct Contact {
    /// Address at which the peer was last heard, or else is to be called.
    pub remote: Option<Remote>,
    /// Time since the peer was last heard.
    pub silence: Option<Duration>,
    /// Bytes of datagrams sent to the peer.
    pub sent_bytes: u64,
    /// Bytes of datagrams received from the peer.
    pub received_bytes: u64,
}

/// Reasons for which there is no session with a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoSession {
    /// The peer does not answer handshakes.
    Unanswered,
    /// The peer calls and rejects every handshake response.
    AnswersRejected,
    /// The peer's responses do not verify: the pre-shared key differs.
    Keys,
    /// The peer speaks this other version of the protocol.
    Version(u8),
    /// The counter of handshakes with the peer is used up.
    Counter,
}

impl NoSession {
    /// Number of reasons.
    pub(crate) const COUNT: usize = 5;

    /// Number of the reason.
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Unanswered => 0,
            Self::AnswersRejected => 1,
            Self::Keys => 2,
            Self::Version(_) => 3,
            Self::Counter => 4,
        }
    }

    /// Protocol version of the peer, if it is another one.
    pub const fn version(self) -> Option<u8> {
        match self {
            Self::Version(version) => Some(version),
            _ => None,
        }
    }

    /// Name of the reason for programs and tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unanswered => "unanswered",
            Self::AnswersRejected => "answers_rejected",
            Self::Keys => "keys",
            Self::Version(_) => "version",
            Self::Counter => "counter",
        }
    }
}

/// State of one peer.
#[derive(Debug)]
pub struct PeerStatus {
    is_up: AtomicBool,
    on_loss: OnPeerLoss,
    sites: Vec<SiteId>,
    /// Sites of mode `tunnel`.
    tunnels: Vec<SiteId>,
    /// Hosts that the peer does not reach.
    unreached: Mutex<Unreached>,
    /// Sites whose packets the kernel forwards while the peer is down or takes no packets.
    passing: Vec<SiteId>,
    takes_packets: AtomicBool,
    /// Session if there is one, contact, and number of flows in the tunnel.
    known: Mutex<(Option<SessionFacts>, Contact, u64)>,
    trouble: Mutex<Option<NoSession>>,
    packets: Mutex<PacketFacts>,
    addresses: Mutex<Vec<SocketAddr>>,
}

impl PeerStatus {
    /// Returns whether the peer is up.
    pub fn is_up(&self) -> bool {
        self.is_up.load(Relaxed)
    }

    /// Returns the session if there is one, the contact, and the number of flows; at most a second
    /// old.
    pub fn known(&self) -> (Option<SessionFacts>, Contact, u64) {
        *self.known.lock()
    }

    /// Returns the packet counters of its sites; at most a second old.
    pub fn packets(&self) -> PacketFacts {
        self.packets.lock().clone()
    }

    pub(super) fn set_packets(&self, packets: PacketFacts) {
        *self.packets.lock() = packets;
    }

    /// Returns the addresses at which the peer is called, in the order of RFC 8305; at most a
    /// second old.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses.lock().clone()
    }

    pub(super) fn set_addresses(&self, addresses: &[SocketAddr]) {
        let mut known = self.addresses.lock();
        if *known != addresses {
            *known = addresses.to_vec();
        }
    }

    /// Returns the reason for which there is no session, as far as known.
    pub fn trouble(&self) -> Option<NoSession> {
        *self.trouble.lock()
    }

    pub(super) fn set_trouble(&self, trouble: Option<NoSession>) {
        *self.trouble.lock() = trouble;
    }

    pub(super) fn set_known(&self, session: Option<SessionFacts>, contact: Contact, flows: u64) {
        *self.known.lock() = (session, contact, flows);
    }

    /// Returns whether new flows go into the tunnel now.
    pub fn takes_flows(&self) -> bool {
        self.is_up.load(Relaxed) || self.on_loss == OnPeerLoss::Hold
    }

    /// Returns the families whose hosts the flows of sites here do not reach by the peer.
    pub fn unreached(&self) -> Vec<Family> {
        let unreached = Some(*self.unreached.lock()).filter(|_| self.has_tunnels());
        unreached.map(families).unwrap_or_default()
    }

    /// Returns whether flows of sites here go to the peer.
    pub(super) fn has_tunnels(&self) -> bool {
        !self.tunnels.is_empty()
    }

    /// Returns these families by site, while new flows go into the tunnel.
    fn refused(&self) -> impl Iterator<Item = (SiteId, BTreeSet<Family>)> {
        let families: BTreeSet<_> = self.unreached().into_iter().collect();
        let refuses = self.takes_flows() && !families.is_empty();
        let sites = self.tunnels.iter().filter(move |_| refuses);
        sites.map(move |site| (*site, families.clone()))
    }

    fn bypassed(&self) -> impl Iterator<Item = SiteId> {
        let is_down = !self.is_up.load(Relaxed);
        let flows = is_down && self.on_loss == OnPeerLoss::Bypass;
        let flows = self.sites.iter().filter(move |_| flows);
        let takes_none = is_down || !self.takes_packets.load(Relaxed);
        let passing = self.passing.iter().filter(move |_| takes_none);
        flows.chain(passing).copied()
    }
}

/// Returns these families as a list.
pub(super) fn families(unreached: Unreached) -> Vec<Family> {
    let Unreached { v4, v6 } = unreached;
    let families = [v4, v6].into_iter().zip(Family::ALL);
    families
        .filter_map(|(is, family)| is.then_some(family))
        .collect()
}

/// Families whose hosts the peers of sites do not reach, by site.
pub type Refused = BTreeMap<SiteId, BTreeSet<Family>>;

/// Peers of a configuration, in its order: all of them, or those of one thread.
#[derive(Debug, Clone)]
pub struct Statuses {
    peers: Arc<[Arc<PeerStatus>]>,
    /// The peers of all threads.
    all: Arc<[Arc<PeerStatus>]>,
    /// Sites whose flows or packets the kernel is to forward.
    bypassed: watch::Sender<BTreeSet<SiteId>>,
    /// New flows that hosts are to open to another address.
    refused: watch::Sender<Refused>,
}

impl Statuses {
    /// Creates the state with all peers down.
    pub fn new(config: &Config) -> Self {
        let of_peer = |index| {
            let sites = config.sites.iter().map(|(id, _)| id);
            sites.filter(move |id| config.peer_of(*id) == Some(index))
        };
        let tunnels = |index| {
            let is_tunnel = |id: &SiteId| config.sites[*id].mode == Mode::Tunnel;
            of_peer(index).filter(is_tunnel).collect()
        };
        let passing = |index| {
            let sites = config.packet_sites();
            let sites = sites.filter(move |site| site.peer == Some(index));
            let passing = sites.filter(|site| site.policy.on_peer_loss == WithoutPeer::Pass);
            passing.map(|site| site.id).collect()
        };
        let peers = config.peers.iter().enumerate();
        let peers: Arc<[_]> = peers
            .map(|(index, peer)| {
                Arc::new(PeerStatus {
                    is_up: AtomicBool::new(false),
                    on_loss: peer.on_peer_loss,
                    sites: of_peer(index).collect(),
                    tunnels: tunnels(index),
                    unreached: Mutex::default(),
                    passing: passing(index),
                    takes_packets: AtomicBool::new(false),
                    known: Mutex::default(),
                    trouble: Mutex::default(),
                    packets: Mutex::default(),
                    addresses: Mutex::default(),
                })
            })
            .collect();
        let statuses = Self {
            all: Arc::clone(&peers),
            peers,
            bypassed: watch::Sender::default(),
            refused: watch::Sender::default(),
        };
        statuses.notify();
        statuses
    }

    /// Returns the peers with these indices, in that order.
    pub(super) fn of(&self, peers: impl Iterator<Item = usize>) -> Self {
        Self {
            peers: peers.map(|peer| Arc::clone(&self.peers[peer])).collect(),
            ..self.clone()
        }
    }

    /// Returns the state of one peer.
    pub fn status(&self, peer: usize) -> &Arc<PeerStatus> {
        &self.peers[peer]
    }

    /// Returns whether the peer is up.
    pub(super) fn is_up(&self, peer: usize) -> bool {
        self.peers[peer].is_up.load(Relaxed)
    }

    /// Returns the number of peers that are up, of all threads.
    pub fn count_up(&self) -> usize {
        let up = self.all.iter();
        up.filter(|peer| peer.is_up.load(Relaxed)).count()
    }

    /// Sets whether the peer is up. Returns whether that is a change.
    pub(super) fn set(&self, peer: usize, is_up: bool) -> bool {
        let changed = self.peers[peer].is_up.swap(is_up, Relaxed) != is_up;
        if changed {
            self.notify();
        }
        changed
    }

    /// Sets whether the peer takes packets (datagrams, RFC 9221) in the current session.
    pub(super) fn set_takes_packets(&self, peer: usize, takes: bool) {
        if self.peers[peer].takes_packets.swap(takes, Relaxed) != takes {
            self.notify();
        }
    }

    /// Sets the hosts that the peer does not reach. Returns what it did not reach before if that
    /// is a change.
    pub(super) fn set_unreached(&self, peer: usize, unreached: Unreached) -> Option<Unreached> {
        let before = {
            let mut known = self.peers[peer].unreached.lock();
            std::mem::replace(&mut *known, unreached)
        };
        if before == unreached {
            return None;
        }
        self.notify();
        Some(before)
    }

    fn notify(&self) {
        self.refused.send_if_modified(|sent| {
            let refused = self.all.iter().flat_map(|peer| peer.refused()).collect();
            let changed = *sent != refused;
            *sent = refused;
            changed
        });
        self.bypassed.send_if_modified(|sent| {
            // Under the lock: of two threads, the later one must see the change of the other.
            let bypassed = self.all.iter().flat_map(|peer| peer.bypassed()).collect();
            let changed = *sent != bypassed;
            *sent = bypassed;
            changed
        });
    }

    /// Returns the sites whose flows or packets the kernel is to forward while their peers are
    /// down.
    pub fn bypassed(&self) -> watch::Receiver<BTreeSet<SiteId>> {
        let mut bypassed = self.bypassed.subscribe();
        bypassed.mark_changed();
        bypassed
    }

    /// Returns the new flows that hosts are to open to another address.
    pub fn refused(&self) -> watch::Receiver<Refused> {
        self.refused.subscribe()
    }
}

/// Formats addresses for the log.
pub(super) fn listed(addresses: &[SocketAddr]) -> String {
    let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    addresses.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(on_loss: &str) -> Config {
        let text = format!(
            "[intercept]\nlan = [\"eth0\"]\n[identity]\nkey_file = \"a\"\n\
             [peer.hub]\nendpoint = \"192.0.2.1:1\"\non_peer_loss = \"{on_loss}\"\n\
             public_key = \"AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=\"\n\
             [[site]]\nname = \"a\"\nmode = \"tunnel\"\npeer = \"hub\"\nmatch = {{ dport = 80 }}\n\
             [[site]]\nname = \"b\"\npeer = \"hub\"\n"
        );
        pep_core::config::parse(&text).expect("valid")
    }

    #[test]
    fn only_a_peer_that_is_up_takes_flows_unless_they_are_held() {
        for (on_loss, held) in [("split", false), ("hold", true), ("bypass", false)] {
            let statuses = Statuses::new(&config(on_loss));
            assert_eq!(statuses.status(0).takes_flows(), held, "{on_loss}");
            assert!(statuses.set(0, true) && !statuses.set(0, true));
            assert!(statuses.status(0).takes_flows());
            assert_eq!(statuses.count_up(), 1);
            statuses.set(0, false);
            assert_eq!(statuses.status(0).takes_flows(), held, "{on_loss}");
        }
    }

    #[test]
    fn sites_are_bypassed_while_their_peer_is_down() {
        let statuses = Statuses::new(&config("bypass"));
        let mut bypassed = statuses.bypassed();
        assert!(bypassed.has_changed().expect("it has a sender"));
        assert_eq!(*bypassed.borrow_and_update(), BTreeSet::from([SiteId(0)]));
        statuses.set(0, true);
        assert!(bypassed.borrow_and_update().is_empty());
        let split = Statuses::new(&config("split"));
        assert!(split.bypassed().borrow().is_empty());
    }

    #[test]
    fn flows_that_would_go_to_a_peer_are_refused_where_it_reaches_no_such_hosts() {
        const NO_V6: Unreached = Unreached {
            v4: false,
            v6: true,
        };
        for (on_loss, held) in [("split", false), ("hold", true), ("bypass", false)] {
            let statuses = Statuses::new(&config(on_loss));
            let refused = statuses.refused();
            let is_refused = || refused.borrow().keys().copied().eq([SiteId(0)]);
            assert_eq!(statuses.set_unreached(0, NO_V6), Some(Unreached::default()));
            assert_eq!(statuses.set_unreached(0, NO_V6), None);
            assert_eq!(statuses.status(0).unreached(), [Family::V6]);
            assert_eq!(is_refused(), held, "{on_loss}, down");
            statuses.set(0, true);
            assert!(is_refused(), "{on_loss}");
            assert!(refused.borrow().values().flatten().eq([&Family::V6]));
            statuses.set_unreached(0, Unreached::default());
            assert!(refused.borrow().is_empty());
        }
    }

    #[test]
    fn packets_bypass_interfaces_while_the_peer_is_down_unless_they_are_dropped() {
        let site = |name: &str, port: u16, lost: &str| {
            format!(
                "[[site]]\nname = \"{name}\"\nmode = \"packet\"\npeer = \"hub\"\nmatch = {{ dport = {port} }}\n\
                 [site.packet]\non_peer_loss = \"{lost}\"\n"
            )
        };
        let text = format!(
            "[intercept]\nlan = [\"eth0\"]\n[identity]\nkey_file = \"a\"\n\
             [peer.hub]\nendpoint = \"192.0.2.1:1\"\n\
             public_key = \"AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=\"\n{}{}",
            site("a", 1, "drop"),
            site("b", 2, "pass")
        );
        let config = pep_core::config::parse(&text).expect("valid");
        let statuses = Statuses::new(&config);
        assert_eq!(*statuses.bypassed().borrow(), BTreeSet::from([SiteId(1)]));
        statuses.set(0, true);
        let passing = |taken| {
            statuses.set_takes_packets(0, taken);
            statuses.bypassed().borrow().len()
        };
        assert_eq!([true, false, true].map(passing), [0, 1, 0]);
        statuses.set(0, false);
        assert_eq!(statuses.bypassed().borrow().len(), 1);
    }
}
