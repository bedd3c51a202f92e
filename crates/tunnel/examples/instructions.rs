//! An upload over a link in virtual time, and sealing, for a program that counts instructions:
//! `scripts/instructions`.
//!
//!     instructions upload none|near|far BYTES MBIT_S RTT_MS
//!     instructions aes|chacha PACKETS
//!
//! The named end is played twice, with the same input. So the count rises by what this end takes.

use std::{collections::VecDeque, env, net::SocketAddr, time::Duration};

use ring::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use tunnel::{
    class::Class,
    crypto::public_key,
    ecn::Ecn,
    endpoint::{
        Carriers, Counters, Endpoint, EndpointConfig, Limits, PeerConfig, PeerEvent, PeerId, Stores,
    },
    session::{Event, Outages, Rate, SessionConfig},
    store::Store,
    wire::StreamId,
};

/// Bytes of a stream that an end holds.
const RING: usize = 4 << 20;
const CREDIT: u64 = 1 << 20;
/// Bytes of IPv4 and UDP headers.
const HEADERS: usize = 28;
/// Bytes that are sealed at a time.
const SEALED: usize = 1400;

/// Ring of bytes for any stream.
struct Ring(Vec<u8>);

impl Store for Ring {
    fn read(&self, _stream: StreamId, from: u64, into: &mut [u8]) {
        let at = from as usize % (RING - into.len());
        into.copy_from_slice(&self.0[at..at + into.len()]);
    }

    fn place(&mut self, _stream: StreamId, from: u64, bytes: &[u8]) {
        let at = from as usize % (RING - bytes.len());
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl Stores for Ring {
    type Store = Self;

    fn store_of(&mut self, _peer: PeerId) -> &mut Self {
        self
    }
}

struct Link {
    bits_s: u64,
    rtt: Duration,
}

struct End {
    endpoint: Endpoint,
    peer: PeerId,
    ring: Ring,
    up: bool,
    readable: u64,
}

impl End {
    fn new(key: u8, link: &Link) -> Self {
        let mut endpoint = Endpoint::new(&EndpointConfig {
            private_key: [key; 32],
            seed: [key; 32],
            limits: Limits::default(),
        });
        let session = SessionConfig {
            rate: Rate::Stated(link.bits_s),
            rtt: link.rtt,
            packet_start: 1452,
            packet_max: 1452,
            overhead: HEADERS,
            outages: Outages::After(Duration::from_secs(1)),
            stream_credit: CREDIT,
            session_credit: 1 << 40,
            ..SessionConfig::default()
        };
        let peer = endpoint.add_peer(PeerConfig {
            public_key: public_key(&[3 - key; 32]),
            psk: [7; 32],
            addresses: vec![address(3 - key)],
            last: None,
            carriers: Carriers::Udp,
            counters: Counters::default(),
            session,
        });
        Self {
            endpoint,
            peer: peer.expect("one peer"),
            ring: Ring(vec![0; RING]),
            up: false,
            readable: 0,
        }
    }

    fn take_events(&mut self) {
        while let Some((_, event)) = self.endpoint.poll_event() {
            match event {
                PeerEvent::Up => self.up = true,
                PeerEvent::Session(Event::Readable { stream, until }) => {
                    self.readable = until;
                    let session = self.endpoint.session(self.peer).expect("up");
                    session.allow(stream, until + CREDIT);
                }
                _ => {}
            }
        }
    }
}

fn address(key: u8) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], key.into()))
}

/// An end with its twins, and what the link brings it.
struct Side {
    address: SocketAddr,
    twins: Vec<End>,
    arrivals: VecDeque<(Duration, Vec<u8>)>,
    looks_at: Option<Duration>,
    /// End of its last packet on the link.
    link_free: Duration,
    sent: u64,
}

impl Side {
    fn new(key: u8, twins: usize, link: &Link) -> Self {
        Self {
            address: address(key),
            twins: (0..twins).map(|_| End::new(key, link)).collect(),
            arrivals: VecDeque::new(),
            looks_at: None,
            link_free: Duration::ZERO,
            sent: 0,
        }
    }

    fn wakes_at(&self) -> Option<Duration> {
        let deadline = self.twins[0].endpoint.deadline();
        [deadline, self.looks_at].into_iter().flatten().min()
    }

    /// Receives and sends, if it wakes now.
    fn turn(&mut self, now: Duration, other: &mut Self, link: &Link) {
        if self.wakes_at().is_some_and(|at| at <= now) {
            self.receive(now, other.address);
            self.send(now, other, link);
        }
    }

    /// Receives what has arrived. As pepd does, it lets what arrives next wait for more.
    fn receive(&mut self, now: Duration, from: SocketAddr) {
        while self.arrivals.front().is_some_and(|(at, _)| *at <= now) {
            let (_, datagram) = self.arrivals.pop_front().expect("seen");
            for end in &mut self.twins {
                let mut datagram = datagram.clone();
                let (to, ring) = (&mut end.endpoint, &mut end.ring);
                to.handle_datagram(now, from, Ecn::Ect0, &mut datagram, ring);
                end.take_events();
            }
        }
        self.plan_look(now);
    }

    fn plan_look(&mut self, now: Duration) {
        let wait = self.twins[0].endpoint.may_wait(now);
        self.looks_at = self.arrivals.front().map(|(at, _)| *at + wait);
    }

    fn send(&mut self, now: Duration, other: &mut Self, link: &Link) {
        loop {
            let mut datagram = Vec::new();
            for end in &mut self.twins {
                datagram.clear();
                let (from, ring) = (&mut end.endpoint, &mut end.ring);
                from.poll_transmit(now, &mut datagram, ring);
            }
            if datagram.is_empty() {
                break;
            }
            self.sent += 1;
            let bits = 8 * (datagram.len() + HEADERS) as u64;
            let time = Duration::from_nanos(bits * 1_000_000_000 / link.bits_s);
            self.link_free = self.link_free.max(now) + time;
            let arrival = self.link_free + link.rtt / 2;
            other.arrivals.push_back((arrival, datagram));
            if other.arrivals.len() == 1 {
                other.plan_look(now);
            }
        }
        for end in &mut self.twins {
            end.take_events();
            let looks_at = self.looks_at.unwrap_or_default();
            end.endpoint.delay_reports(looks_at);
        }
    }
}

/// Lets time pass until an end wakes, and lets this end receive and send.
fn step(sides: &mut [Side; 2], now: &mut Duration, link: &Link) {
    let wakes = sides.each_ref().map(Side::wakes_at);
    let next = wakes.into_iter().flatten().min().expect("beacons");
    *now = next.max(*now + Duration::from_nanos(1));
    let [near, far] = sides;
    near.turn(*now, far, link);
    far.turn(*now, near, link);
}

/// Prints the number of datagrams that the near and the far end sent.
fn upload(twice: &str, bytes: u64, link: &Link) {
    let twins = |name: &str| 1 + usize::from(twice == name);
    let mut sides = [
        Side::new(1, twins("near"), link),
        Side::new(2, twins("far"), link),
    ];
    let mut now = Duration::ZERO;
    while !sides.iter().all(|side| side.twins[0].up) {
        step(&mut sides, &mut now, link);
    }
    for end in &mut sides[0].twins {
        let session = end.endpoint.session(end.peer).expect("up");
        let stream = session.open(Class::Normal, 0, b"to").expect("first");
        session.written(stream, bytes);
    }
    while sides[1].twins[0].readable < bytes {
        step(&mut sides, &mut now, link);
    }
    for side in &sides {
        assert!(
            side.twins
                .iter()
                .all(|end| end.readable == side.twins[0].readable)
        );
    }
    println!("{} {}", sides[0].sent, sides[1].sent);
}

fn seal(algorithm: &'static ring::aead::Algorithm, packets: u64) {
    let key = UnboundKey::new(algorithm, &[1; 32]).expect("32 bytes");
    let key = LessSafeKey::new(key);
    let mut packet = [0; SEALED];
    for number in 0..packets {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&number.to_be_bytes());
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = key.seal_in_place_separate_tag(nonce, Aad::from([0; 16]), &mut packet);
        assert!(tag.is_ok(), "short");
    }
    println!("{packets} 0");
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let number = |at: usize| arguments[at].parse::<u64>().expect("a number");
    match arguments[0].as_str() {
        "upload" => {
            let link = Link {
                bits_s: number(3) * 1_000_000,
                rtt: Duration::from_millis(number(4)),
            };
            upload(&arguments[1], number(2), &link);
        }
        "aes" => seal(&AES_256_GCM, number(1)),
        "chacha" => seal(&CHACHA20_POLY1305, number(1)),
        other => panic!("no such work: {other}"),
    }
}
