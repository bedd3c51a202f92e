//! What others than the tunnels' thread know of peers: whether they are there.

use std::{
    collections::BTreeSet,
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
    site::{SiteId, WithoutPeer},
};
use tokio::sync::watch;
use tunnel::{
    cause::CauseCounts,
    endpoint::{Carrier, Remote},
    session::{PathState, SessionStats},
};

/// What is known of the session with a peer, as it was within the last second.
#[derive(Debug, Clone, Copy)]
pub struct SessionFacts {
    /// By what it is reached.
    pub carrier: Option<Carrier>,
    /// How things are on the path.
    pub path: PathState,
    /// What the session has done.
    pub stats: SessionStats,
    /// Why packets did not arrive.
    pub causes: CauseCounts,
}

/// Address of a peer and bytes exchanged with it in all sessions since the process began; at most a
/// second old.
#[derive(Debug, Clone, Copy, Default)]
pub struct Contact {
    /// Address where it was last heard, or else is to be called.
    pub remote: Option<Remote>,
    /// Time since it was last heard.
    pub silence: Option<Duration>,
    /// Bytes of datagrams sent to it.
    pub sent_bytes: u64,
    /// Bytes of datagrams of it.
    pub received_bytes: u64,
}

/// Why there is no session with a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoSession {
    /// It does not answer our handshakes.
    Unanswered,
    /// It takes none of our answers to its own.
    Untaken,
    /// Its answers do not fit: the shared secret differs.
    Keys,
    /// It speaks another version of the protocol.
    Version,
}

impl NoSession {
    /// For programs and tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unanswered => "unanswered",
            Self::Untaken => "untaken",
            Self::Keys => "keys",
            Self::Version => "version",
        }
    }
}

/// Whether a peer is there.
#[derive(Debug)]
pub struct PeerStatus {
    is_here: AtomicBool,
    on_loss: OnPeerLoss,
    sites: Vec<SiteId>,
    /// Those whose packets the kernel is to forward while it is gone, or takes none.
    passing: Vec<SiteId>,
    takes_packets: AtomicBool,
    /// The session, where there is one, and flows in the tunnel.
    known: Mutex<(Option<SessionFacts>, Contact, u64)>,
    trouble: Mutex<Option<NoSession>>,
    packets: Mutex<PacketFacts>,
    addresses: Mutex<Vec<SocketAddr>>,
}

impl PeerStatus {
    /// Whether it is there.
    pub fn is_here(&self) -> bool {
        self.is_here.load(Relaxed)
    }

    /// The session, where there is one, and flows in the tunnel; not older than a second.
    pub fn known(&self) -> (Option<SessionFacts>, Contact, u64) {
        *self.known.lock()
    }

    /// How the packets of its sites fare; not older than a second.
    pub fn packets(&self) -> PacketFacts {
        self.packets.lock().clone()
    }

    pub(super) fn set_packets(&self, packets: PacketFacts) {
        *self.packets.lock() = packets;
    }

    /// Addresses at which it is called, in the order of RFC 8305; not older than a second.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses.lock().clone()
    }

    pub(super) fn set_addresses(&self, addresses: &[SocketAddr]) {
        let mut known = self.addresses.lock();
        if *known != addresses {
            *known = addresses.to_vec();
        }
    }

    /// Why there is no session, as far as known.
    pub fn trouble(&self) -> Option<NoSession> {
        *self.trouble.lock()
    }

    pub(super) fn set_trouble(&self, trouble: Option<NoSession>) {
        *self.trouble.lock() = trouble;
    }

    pub(super) fn set_known(&self, session: Option<SessionFacts>, contact: Contact, flows: u64) {
        *self.known.lock() = (session, contact, flows);
    }

    /// Whether new flows go into its tunnel, now.
    pub fn takes_flows(&self) -> bool {
        self.is_here.load(Relaxed) || self.on_loss == OnPeerLoss::Hold
    }

    fn bypassed(&self) -> impl Iterator<Item = SiteId> {
        let gone = !self.is_here.load(Relaxed);
        let flows = gone && self.on_loss == OnPeerLoss::Bypass;
        let flows = self.sites.iter().filter(move |_| flows);
        let takes_none = gone || !self.takes_packets.load(Relaxed);
        let passing = self.passing.iter().filter(move |_| takes_none);
        flows.chain(passing).copied()
    }
}

/// All peers of a configuration, in its order.
#[derive(Debug, Clone)]
pub struct Statuses {
    peers: Arc<[Arc<PeerStatus>]>,
    /// Sites whose flows or packets the kernel is to forward.
    bypassed: watch::Sender<BTreeSet<SiteId>>,
}

impl Statuses {
    /// Nobody is there yet.
    pub fn new(config: &Config) -> Self {
        let of_peer = |index| {
            let sites = config.sites.iter().map(|(id, _)| id);
            sites.filter(move |id| config.peer_of(*id) == Some(index))
        };
        let passing = |index| {
            let sites = config.packet_sites();
            let sites = sites.filter(move |site| site.peer == index);
            let passing = sites.filter(|site| site.policy.on_peer_loss == WithoutPeer::Pass);
            passing.map(|site| site.id).collect()
        };
        let peers = config.peers.iter().enumerate();
        let peers: Arc<[_]> = peers
            .map(|(index, peer)| {
                Arc::new(PeerStatus {
                    is_here: AtomicBool::new(false),
                    on_loss: peer.on_peer_loss,
                    sites: of_peer(index).collect(),
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
            peers,
            bypassed: watch::Sender::default(),
        };
        statuses.tell();
        statuses
    }

    /// One peer's.
    pub fn of(&self, peer: usize) -> &Arc<PeerStatus> {
        &self.peers[peer]
    }

    /// Whether the peer is there.
    pub(super) fn is_here(&self, peer: usize) -> bool {
        self.peers[peer].is_here.load(Relaxed)
    }

    /// Peers that are there.
    pub fn here(&self) -> usize {
        let here = self.peers.iter();
        here.filter(|peer| peer.is_here.load(Relaxed)).count()
    }

    /// Whether the peer is there from now on. Returns whether that is news.
    pub(super) fn set(&self, peer: usize, is_here: bool) -> bool {
        let changed = self.peers[peer].is_here.swap(is_here, Relaxed) != is_here;
        if changed {
            self.tell();
        }
        changed
    }

    /// Whether the peer takes packets beside flows, in the session that has begun.
    pub(super) fn set_takes_packets(&self, peer: usize, takes: bool) {
        if self.peers[peer].takes_packets.swap(takes, Relaxed) != takes {
            self.tell();
        }
    }

    fn tell(&self) {
        let bypassed = self.peers.iter().flat_map(|peer| peer.bypassed()).collect();
        self.bypassed.send_if_modified(|sent| {
            let changed = *sent != bypassed;
            *sent = bypassed;
            changed
        });
    }

    /// Sites whose flows or packets the kernel is to forward, as long as their peers are gone.
    pub fn bypassed(&self) -> watch::Receiver<BTreeSet<SiteId>> {
        let mut bypassed = self.bypassed.subscribe();
        bypassed.mark_changed();
        bypassed
    }
}

/// Addresses for the log.
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
    fn only_a_peer_that_is_there_takes_flows_unless_they_are_held() {
        for (on_loss, held) in [("split", false), ("hold", true), ("bypass", false)] {
            let statuses = Statuses::new(&config(on_loss));
            assert_eq!(statuses.of(0).takes_flows(), held, "{on_loss}");
            assert!(statuses.set(0, true) && !statuses.set(0, true));
            assert!(statuses.of(0).takes_flows());
            assert_eq!(statuses.here(), 1);
            statuses.set(0, false);
            assert_eq!(statuses.of(0).takes_flows(), held, "{on_loss}");
        }
    }

    #[test]
    fn sites_are_bypassed_while_their_peer_is_gone() {
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
    fn packets_go_into_no_interface_of_ours_while_the_peer_is_gone_but_where_they_are_dropped() {
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
