//! Two endpoints in one process: a megabyte through a stream, over a link that loses one datagram
//! in twenty. `cargo run -p tunnel --example embed`
//!
//! There is no socket and no clock: the loop in `main` replaces both. A program with sockets makes
//! the same three calls: `handle_datagram` for what arrives, `poll_transmit` for what is to be
//! sent, `deadline` for the time to wait.
#![expect(clippy::unwrap_used, reason = "an example may panic")]

use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    time::Duration,
};

use tunnel::{
    class::Class,
    crypto::public_key,
    ecn::Ecn,
    endpoint::{
        Carriers, Counters, Endpoint, EndpointConfig, Limits, PeerConfig, PeerEvent, PeerId, Stores,
    },
    session::{Event, Rate, Session, SessionConfig},
    store::Store,
    wire::StreamId,
};

const SIZE: u64 = 1_000_000;
const ONE_WAY: Duration = Duration::from_millis(50);

/// Bytes of the streams, which a session leaves to its caller.
#[derive(Default)]
struct Bytes {
    sent: Vec<u8>,
    received: HashMap<StreamId, Vec<u8>>,
}

impl Store for Bytes {
    fn read(&self, _stream: StreamId, from: u64, into: &mut [u8]) {
        let from = from as usize;
        into.copy_from_slice(&self.sent[from..from + into.len()]);
    }

    fn place(&mut self, stream: StreamId, from: u64, bytes: &[u8]) {
        let stream = self.received.entry(stream).or_default();
        let (from, until) = (from as usize, from as usize + bytes.len());
        stream.resize(stream.len().max(until), 0);
        stream[from..until].copy_from_slice(bytes);
    }
}

/// Only one peer has streams here.
impl Stores for Bytes {
    type Store = Self;

    fn store_of(&mut self, _peer: PeerId) -> &mut Self {
        self
    }
}

struct End {
    endpoint: Endpoint,
    peer: PeerId,
    bytes: Bytes,
}

impl End {
    /// Calls the peer if it has an address, and waits to be called otherwise.
    fn new(private_key: [u8; 32], peer: [u8; 32], address: Option<SocketAddr>) -> Self {
        let mut endpoint = Endpoint::new(&EndpointConfig {
            private_key,
            seed: private_key, // real programs: random bytes from the system
            limits: Limits::default(),
        });
        let peer = endpoint.add_peer(PeerConfig {
            public_key: public_key(&peer),
            psk: [0; 32],
            addresses: address.into_iter().collect(),
            last: None,
            carriers: Carriers::Udp,
            counters: Counters::default(),
            session: SessionConfig {
                rate: Rate::Stated(10_000_000),
                rtt: 2 * ONE_WAY,
                ..SessionConfig::default()
            },
        });
        Self {
            endpoint,
            peer: peer.unwrap(),
            bytes: Bytes::default(),
        }
    }

    fn session(&mut self) -> &mut Session {
        self.endpoint.session(self.peer).unwrap()
    }
}

/// A datagram on the link: arrival time, receiving end, and contents.
type OnTheWay = (Duration, usize, Vec<u8>);

fn main() {
    let addresses: [SocketAddr; 2] =
        ["192.0.2.1:5001", "192.0.2.2:5001"].map(|a| a.parse().unwrap());
    let mut ends = [
        End::new([1; 32], [2; 32], Some(addresses[1])),
        End::new([2; 32], [1; 32], None),
    ];
    ends[0].bytes.sent = (0..SIZE).map(|at| (at / 7) as u8).collect();
    let mut link: VecDeque<OnTheWay> = VecDeque::new();
    let (mut now, mut sent) = (Duration::ZERO, 0);
    loop {
        for (at, end) in ends.iter_mut().enumerate() {
            while let Some((_, event)) = end.endpoint.poll_event() {
                match event {
                    PeerEvent::Up if at == 0 => {
                        println!("{now:?}: the session is up");
                        let stream = end.session().open(Class::Bulk, 0, b"a file").unwrap();
                        end.session().written(stream, SIZE);
                        end.session().finish(stream);
                    }
                    // Bytes that were read make room for more.
                    PeerEvent::Session(Event::Readable { stream, until }) => {
                        end.session().allow(stream, until + (1 << 20));
                    }
                    PeerEvent::Session(Event::Finished { stream }) if at == 1 => {
                        let received = &end.bytes.received[&stream];
                        println!(
                            "{now:?}: {} bytes received, of {sent} datagrams",
                            received.len()
                        );
                        assert_eq!(received.len() as u64, SIZE);
                        assert!(
                            received
                                .iter()
                                .enumerate()
                                .all(|(at, byte)| *byte == (at / 7) as u8)
                        );
                        return;
                    }
                    _ => {}
                }
            }
            loop {
                let mut datagram = Vec::new();
                let transmit = end
                    .endpoint
                    .poll_transmit(now, &mut datagram, &mut end.bytes);
                if transmit.is_none() {
                    break;
                }
                sent += 1;
                if sent % 20 != 0 {
                    link.push_back((now + ONE_WAY, 1 - at, datagram));
                }
            }
        }
        let deadlines = ends.iter().filter_map(|end| end.endpoint.deadline());
        let arrivals = link.front().map(|(arrival, ..)| *arrival);
        now = now.max(deadlines.chain(arrivals).min().unwrap());
        while link.front().is_some_and(|(arrival, ..)| *arrival <= now)
            && let Some((_, at, mut datagram)) = link.pop_front()
        {
            let End {
                endpoint, bytes, ..
            } = &mut ends[at];
            endpoint.handle_datagram(now, addresses[1 - at], Ecn::NotEct, &mut datagram, bytes);
        }
    }
}
