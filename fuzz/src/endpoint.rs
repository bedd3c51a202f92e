//! Two endpoints with a session between them, and an attacker on the path without a key. Whatever
//! the attacker sends, the session continues, and it receives fewer bytes than it sends.

use std::{net::SocketAddr, time::Duration};

use arbitrary::Arbitrary;
use tunnel::{
    crypto::public_key,
    ecn::Ecn,
    endpoint::{
        Carriers, Counters, Endpoint, EndpointConfig, Limits, PeerConfig, PeerEvent, PeerId, Stores,
    },
    session::{Outages, Rate, SessionConfig, SkipConfig},
    store::Store,
    wire::StreamId,
};

/// A sequence of events.
#[derive(Arbitrary, Debug)]
pub struct Case {
    events: Vec<Event>,
}

/// An event.
#[derive(Arbitrary, Debug)]
enum Event {
    /// Time passes, and datagrams between the endpoints arrive.
    Time { ms: u8 },
    /// Arbitrary bytes arrive at one endpoint.
    Bytes { second: bool, bytes: Vec<u8> },
    /// A recorded datagram arrives: changed, truncated, from another address, or reflected to its
    /// sender.
    Recorded {
        back: u16,
        byte: u16,
        xor: u8,
        cut: u8,
        elsewhere: bool,
        reflected: bool,
    },
    /// A datagram of the right type and length for its receiver, filled with bytes.
    Forged {
        second: bool,
        kind: u8,
        index: u16,
        fill: Vec<u8>,
    },
}

struct NoBytes;

impl Store for NoBytes {
    fn read(&self, _: StreamId, _: u64, into: &mut [u8]) {
        into.fill(0);
    }

    fn place(&mut self, _: StreamId, _: u64, _: &[u8]) {}
}

impl Stores for NoBytes {
    type Store = Self;

    fn store_of(&mut self, _: PeerId) -> &mut Self {
        self
    }
}

#[derive(Clone)]
struct Sent {
    by: usize,
    bytes: Vec<u8>,
}

struct Two {
    now: Duration,
    ends: [Endpoint; 2],
    peers: [PeerId; 2],
    sent: Vec<Sent>,
    /// Bytes sent to an address other than the peer's.
    astray: usize,
}

/// Lengths of forged datagrams, by type.
const LENGTHS: [usize; 6] = [229, 169, 49, 21, 60, 181];

fn address(of: usize) -> SocketAddr {
    ([192, 0, 2, 1 + of as u8], 5001).into()
}

fn config() -> SessionConfig {
    SessionConfig {
        initiator: false,
        rate: Rate::Stated(1_000_000),
        return_rate: None,
        rtt: Duration::from_millis(20),
        packet_start: 1200,
        packet_max: 1400,
        overhead: 68,
        outages: Outages::After(Duration::from_secs(1)),
        stream_credit: 1 << 16,
        session_credit: 1 << 20,
        kept_max: 4 << 20,
        streams_max: 10,
        packets: false,
        peer_packets: false,
        peer_rests: false,
        memory: None,
        overhead_max: 0.5,
        skips: SkipConfig::default(),
        unreached: Default::default(),
    }
}

fn end(of: usize) -> (Endpoint, PeerId) {
    let mut endpoint = Endpoint::new(&EndpointConfig {
        private_key: [1 + of as u8; 32],
        seed: [3 + of as u8; 32],
        limits: Limits::default(),
    });
    let peer = endpoint.add_peer(PeerConfig {
        public_key: public_key(&[2 - of as u8; 32]),
        psk: [5; 32],
        addresses: (of == 0).then(|| address(1)).into_iter().collect(),
        // Both ends initiate.
        last: (of == 1).then(|| address(0)),
        carriers: Carriers::Udp,
        counters: Counters::default(),
        session: config(),
    });
    (endpoint, peer.expect("the first peer"))
}

impl Two {
    fn new() -> Self {
        let [(one, two), (other, peer)] = [end(0), end(1)];
        Self {
            now: Duration::from_secs(1),
            ends: [one, other],
            peers: [two, peer],
            sent: Vec::new(),
            astray: 0,
        }
    }

    fn is_up(&self) -> bool {
        (0..2).all(|at| {
            let state = self.ends[at].peer_state(self.peers[at]);
            state.is_some_and(|state| state.up)
        })
    }

    /// Delivers datagrams between the endpoints, a millisecond at a time.
    fn run(&mut self, ms: u32) {
        for _ in 0..ms {
            self.now += Duration::from_millis(1);
            for by in 0..2 {
                self.exchange(by);
            }
        }
    }

    fn exchange(&mut self, by: usize) {
        // The rate and the attacks bound the datagrams due within a millisecond.
        for _ in 0..1000 {
            let mut bytes = Vec::new();
            let sent = self.ends[by].poll_transmit(self.now, &mut bytes, &mut NoBytes);
            let Some(transmit) = sent else {
                return;
            };
            assert!(!bytes.is_empty());
            if transmit.to.address != address(1 - by) {
                self.astray += bytes.len();
                continue;
            }
            self.sent.push(Sent { by, bytes });
            self.deliver(1 - by, address(by), self.sent.len() - 1);
        }
        panic!("it never stops sending");
    }

    fn deliver(&mut self, to: usize, from: SocketAddr, place: usize) {
        let mut bytes = self.sent[place].bytes.clone();
        self.receive(to, from, &mut bytes);
    }

    fn receive(&mut self, to: usize, from: SocketAddr, bytes: &mut [u8]) {
        self.ends[to].handle_datagram(self.now, from, Ecn::NotEct, bytes, &mut NoBytes);
    }

    /// Checks that no event reports harm.
    fn check_events(&mut self) {
        for end in &mut self.ends {
            while let Some((_, event)) = end.poll_event() {
                assert!(matches!(event, PeerEvent::Session(_)), "{event:?}");
            }
        }
    }

    /// Plays an event and returns the number of bytes that the attacker sent.
    fn play(&mut self, event: &Event) -> usize {
        let elsewhere = ([198, 51, 100, 9], 9).into();
        match event {
            Event::Time { ms } => {
                self.run((*ms % 64).into());
                0
            }
            Event::Bytes { second, bytes } => {
                self.receive((*second).into(), elsewhere, &mut bytes.clone());
                bytes.len()
            }
            Event::Recorded {
                back,
                byte,
                xor,
                cut,
                elsewhere: away,
                reflected,
            } => {
                let place = self.sent.len() - 1 - usize::from(*back) % self.sent.len();
                let Sent { by, mut bytes } = self.sent[place].clone();
                let at = usize::from(*byte) % bytes.len();
                bytes[at] ^= xor;
                bytes.truncate(bytes.len() - usize::from(*cut) % 32 % bytes.len());
                let to = if *reflected { by } else { 1 - by };
                let from = if *away { elsewhere } else { address(1 - to) };
                self.receive(to, from, &mut bytes);
                bytes.len()
            }
            Event::Forged {
                second,
                kind,
                index,
                fill,
            } => {
                let length = LENGTHS[usize::from(*kind) % LENGTHS.len()];
                let mut bytes = vec![1 + kind % 5, 0, 0];
                bytes.extend_from_slice(&index.to_be_bytes());
                bytes.extend_from_slice(fill);
                bytes.resize(length, 0);
                self.receive((*second).into(), elsewhere, &mut bytes);
                length
            }
        }
    }
}

/// Plays a case.
pub fn run(case: &Case) {
    let mut two = Two::new();
    two.run(10);
    assert!(two.is_up());
    for end in &mut two.ends {
        while end.poll_event().is_some() {}
    }
    let mut given = 0;
    for event in case.events.iter().take(200) {
        given += two.play(event);
        two.check_events();
    }
    two.run(100);
    two.check_events();
    assert!(two.is_up() && two.astray <= given);
    let heard = |at: usize| two.ends[at].peer_state(two.peers[at])?.heard;
    let recent = two.now.saturating_sub(Duration::from_millis(2000));
    assert!((0..2).all(|at| heard(at) >= Some(recent)));
}
