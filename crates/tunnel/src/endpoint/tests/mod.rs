//! Two or more endpoints over a scripted network, in virtual time.

mod addresses;
mod attack;
mod begin;
mod carriers;
mod counters;
mod ending;
pub(crate) mod fake;
mod guard;
mod paths;
mod rekey;
mod roam;
mod shards;
mod vectors;

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use super::{
    Carriers, Counters, DownReason, Endpoint, EndpointConfig, HandshakeError, Limits, PeerConfig,
    PeerEvent, PeerId, Remote, Stores, Stranger, Transmit,
};
use crate::{
    crypto::{Key, public_key},
    ecn::Ecn,
    session::{Outages, Rate, SessionConfig, SkipConfig, Unreached},
    store::Store,
    wire::StreamId,
};

pub(super) const MS: Duration = Duration::from_millis(1);
pub(super) const S: Duration = Duration::from_secs(1);

pub(super) struct NoStore;

impl Store for NoStore {
    fn read(&self, _: StreamId, _: u64, _: &mut [u8]) {}
    fn place(&mut self, _: StreamId, _: u64, _: &[u8]) {}
}

impl Stores for NoStore {
    type Store = Self;
    fn store_of(&mut self, _: PeerId) -> &mut Self {
        self
    }
}

pub(super) fn session_config() -> SessionConfig {
    SessionConfig {
        initiator: false,
        rate: Rate::Stated(10_000_000),
        return_rate: None,
        rtt: 600 * MS,
        packet_start: 1200,
        packet_max: 1400,
        overhead: 68,
        outages: Outages::After(S),
        stream_credit: 1 << 20,
        session_credit: 1 << 24,
        kept_max: 64 << 20,
        streams_max: 1000,
        packets: false,
        unreached: Unreached::default(),
        peer_packets: false,
        peer_rests: false,
        memory: None,
        overhead_max: 0.5,
        skips: SkipConfig::NONE,
    }
}

pub(super) fn address(host: u8) -> SocketAddr {
    ([192, 0, 2, host], 5001).into()
}

/// Returns a private key. The second node's public key is larger than the first one's.
pub(super) fn private(seed: u8) -> Key {
    [seed; 32]
}

/// An endpoint, its address, and its history.
pub(super) struct Node {
    pub endpoint: Endpoint,
    pub address: SocketAddr,
    pub events: Vec<PeerEvent>,
    pub sent: u64,
    pub sent_bytes: u64,
}

impl Node {
    pub fn new(host: u8, seed: u8, limits: Limits) -> Self {
        let config = EndpointConfig {
            private_key: private(host),
            seed: [seed; 32],
            limits,
        };
        Self {
            endpoint: Endpoint::new(&config),
            address: address(host),
            events: Vec::new(),
            sent: 0,
            sent_bytes: 0,
        }
    }

    pub fn peer(&mut self, host: u8, calls: bool) -> PeerId {
        self.endpoint.add_peer(peer_config(host, calls)).unwrap()
    }

    pub fn session(&mut self) -> Option<&mut fake::Session> {
        self.endpoint.session(PeerId(0))
    }

    /// Returns the received packets, without their numbers.
    pub fn inbox(&mut self) -> Vec<Vec<u8>> {
        let session = self.session();
        let packets = session.map(|session| std::mem::take(&mut session.inbox));
        packets
            .into_iter()
            .flatten()
            .map(|(_, packet)| packet)
            .collect()
    }

    pub fn write(&mut self, packet: &[u8]) {
        self.session().unwrap().outbox.push_back(packet.to_vec());
    }

    pub fn is_up(&self) -> bool {
        self.endpoint.peer_state(PeerId(0)).unwrap().up
    }

    pub fn take_events(&mut self) -> Vec<PeerEvent> {
        std::mem::take(&mut self.events)
    }
}

pub(super) fn peer_config(host: u8, calls: bool) -> PeerConfig {
    PeerConfig {
        public_key: public_key(&private(host)),
        psk: [7; 32],
        addresses: calls.then_some(address(host)).into_iter().collect(),
        last: None,
        carriers: Carriers::Udp,
        counters: Counters::default(),
        session: session_config(),
    }
}

/// A datagram in flight.
#[derive(Clone, Debug)]
pub(super) struct Datagram {
    pub from: Remote,
    pub to: Remote,
    pub bytes: Vec<u8>,
}

type Fate = Box<dyn FnMut(Duration, &Datagram) -> Vec<Duration>>;

/// Network that carries datagrams.
pub(super) struct Net {
    pub now: Duration,
    pub nodes: Vec<Node>,
    /// Delays after which a datagram arrives: none, one or several.
    pub fate: Fate,
    /// All datagrams sent.
    pub log: Vec<Datagram>,
    /// Number of initiations that one shard passed to another.
    pub passed: u64,
    on_the_way: BTreeMap<(Duration, u64), Datagram>,
    count: u64,
}

pub(super) const DELAY: Duration = Duration::from_millis(50);

impl Net {
    /// Creates two nodes, 1 and 2, that know each other; the first one calls, and the second one,
    /// too, if `both`.
    pub fn pair(both: bool) -> Self {
        Self::with(Limits::default(), both)
    }

    pub fn with(limits: Limits, both: bool) -> Self {
        let mut one = Node::new(1, 1, limits);
        let mut two = Node::new(2, 2, limits);
        one.peer(2, true);
        two.peer(1, both);
        Self {
            now: S,
            nodes: vec![one, two],
            fate: Box::new(|_, _| vec![DELAY]),
            log: Vec::new(),
            passed: 0,
            on_the_way: BTreeMap::new(),
            count: 0,
        }
    }

    /// Creates a pair with a session.
    pub fn up() -> Self {
        let mut net = Self::pair(false);
        net.run(S);
        assert!(net.nodes.iter().all(Node::is_up));
        net.forget_events();
        net
    }

    pub fn one(&mut self) -> &mut Node {
        &mut self.nodes[0]
    }

    pub fn two(&mut self) -> &mut Node {
        &mut self.nodes[1]
    }

    /// Runs the network for this time.
    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.drain();
            let arrival = self.on_the_way.keys().next().map(|(at, _)| *at);
            let deadlines = self
                .nodes
                .iter()
                .filter_map(|node| node.endpoint.deadline());
            let next = deadlines.chain(arrival).min().unwrap_or(Duration::MAX);
            assert!(
                next > self.now || arrival == Some(self.now),
                "a deadline that has passed"
            );
            if next > end {
                break;
            }
            self.now = next;
            self.arrive();
        }
        self.now = end;
    }

    fn drain(&mut self) {
        for at in 0..self.nodes.len() {
            let mut out = Vec::new();
            while let Some(Transmit { to, .. }) =
                self.nodes[at]
                    .endpoint
                    .poll_transmit(self.now, &mut out, &mut NoStore)
            {
                let node = &mut self.nodes[at];
                node.sent += 1;
                node.sent_bytes += out.len() as u64;
                let from = Remote {
                    address: node.address,
                    ..to
                };
                let bytes = std::mem::take(&mut out);
                assert!(!bytes.is_empty());
                self.send(Datagram { from, to, bytes });
            }
            self.nodes[at].collect();
        }
    }

    fn send(&mut self, datagram: Datagram) {
        for delay in (self.fate)(self.now, &datagram) {
            self.count += 1;
            self.on_the_way
                .insert((self.now + delay, self.count), datagram.clone());
        }
        self.log.push(datagram);
    }

    fn arrive(&mut self) {
        while let Some(first) = self.on_the_way.first_entry()
            && first.key().0 <= self.now
        {
            let datagram = first.remove();
            self.deliver(&datagram);
        }
    }

    /// Delivers a datagram now, from any sender. Consecutive nodes with one address are shards.
    pub fn deliver(&mut self, datagram: &Datagram) -> Option<PeerId> {
        let is_to = |node: &Node| node.address == datagram.to.address;
        let first = self.nodes.iter().position(is_to)?;
        let shard = self.nodes[first].endpoint.local.shard;
        let owner = shard.owner(&datagram.bytes).unwrap_or(shard.number());
        let node = &mut self.nodes[first + usize::from(owner)];
        let mut bytes = datagram.bytes.clone();
        let peer = node.endpoint.handle_datagram(
            self.now,
            datagram.from,
            Ecn::NotEct,
            &mut bytes,
            &mut NoStore,
        );
        node.collect();
        let Some(shard) = node.endpoint.take_elsewhere() else {
            return peer;
        };
        assert_eq!((peer, &bytes), (None, &datagram.bytes));
        self.passed += 1;
        let node = &mut self.nodes[first + usize::from(shard)];
        let peer = node
            .endpoint
            .handle_admitted(self.now, datagram.from, &bytes);
        node.collect();
        peer
    }

    /// Restarts a node without its memory.
    pub fn restart(&mut self, at: usize, seed: u8, calls: bool) {
        let host = at as u8 + 1;
        self.nodes[at] = Node::new(host, seed, Limits::default());
        self.nodes[at].peer(3 - host, calls);
    }

    /// Queues packets at each node, and collects what has arrived at each.
    pub fn load(&mut self, first: u32, counts: [u32; 2], arrived: &mut [Vec<Vec<u8>>; 2]) {
        for ((node, arrived), count) in self.nodes.iter_mut().zip(arrived).zip(counts) {
            for packet in packets(first, count) {
                node.write(&packet);
            }
            arrived.extend(node.inbox());
        }
    }

    /// Discards all events so far.
    pub fn forget_events(&mut self) {
        for node in &mut self.nodes {
            node.take_events();
        }
    }

    pub fn transfer(&mut self, from: usize, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
        for packet in packets {
            self.nodes[from].write(packet);
        }
        self.run(S);
        self.nodes[1 - from].inbox()
    }
}

impl Node {
    fn collect(&mut self) {
        while let Some((_, event)) = self.endpoint.poll_event() {
            self.events.push(event);
        }
    }
}

/// Returns this many different packets.
pub(super) fn packets(first: u32, count: u32) -> Vec<Vec<u8>> {
    let packet = |number: u32| number.to_be_bytes().repeat(1 + number as usize % 100);
    (first..first + count).map(packet).collect()
}

#[test]
fn what_is_said_of_sizes_holds() {
    use super::datagram::*;
    assert_eq!(crate::wire::DATAGRAM_OVERHEAD, 25);
    assert_eq!(
        [INITIATION_LEN, RESPONSE_LEN, COOKIE_LEN, CONFIRMATION_LEN],
        [229, 169, 49, 21]
    );
}
