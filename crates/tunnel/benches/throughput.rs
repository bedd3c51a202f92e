//! What a gigabyte costs in both ends of a tunnel together, without sockets: packing, sealing, opening,
//! placing, reports. Virtual time inside; outside, seconds of the processor (Linux tells them in
//! `/proc/thread-self/schedstat`, proc(5)), which others on the machine do not add to, and of the wall's clock.
//!
//!     cargo bench -p tunnel --bench throughput

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use tunnel::{
    class::Class,
    crypto::public_key,
    ecn::Ecn,
    endpoint::{Carriers, Endpoint, EndpointConfig, Limits, PeerConfig, PeerEvent, PeerId, Stores},
    session::{Event, Outages, Rate, SessionConfig},
    store::Store,
    wire::StreamId,
};

const BYTES: u64 = 256 << 20;
const RUNS: usize = 5;

/// A ring of bytes for whatever stream.
struct Ring(Vec<u8>);

impl Store for Ring {
    fn read(&self, _stream: StreamId, from: u64, into: &mut [u8]) {
        let at = from as usize % (self.0.len() - into.len());
        into.copy_from_slice(&self.0[at..at + into.len()]);
    }

    fn place(&mut self, _stream: StreamId, from: u64, bytes: &[u8]) {
        let at = from as usize % (self.0.len() - bytes.len());
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl Stores for Ring {
    type Store = Self;

    fn of(&mut self, _peer: PeerId) -> &mut Self {
        self
    }
}

struct End {
    endpoint: Endpoint,
    peer: PeerId,
    address: SocketAddr,
    ring: Ring,
    up: bool,
    readable: u64,
}

fn end(key: u8, other: u8, port: u16) -> End {
    let mut endpoint = Endpoint::new(&EndpointConfig {
        private_key: [key; 32],
        seed: [key; 32],
        limits: Limits::default(),
    });
    let session = SessionConfig {
        initiator: false,
        rate: Rate::Stated(10_000_000_000),
        return_rate: None,
        rtt: Duration::from_millis(1),
        packet_start: 1447,
        packet_max: 1447,
        overhead: 53,
        outages: Outages::After(Duration::from_secs(1)),
        stream_credit: 1 << 20,
        session_credit: 1 << 40,
        streams_max: 100,
        packets: false,
        peer_packets: false,
        memory: None,
        overhead_max: 1.0,
    };
    let peer = endpoint.add_peer(PeerConfig {
        public_key: public_key(&[other; 32]),
        psk: [7; 32],
        address: Some(SocketAddr::from(([127, 0, 0, 1], 3 - port))),
        last: None,
        carriers: Carriers::Udp,
        session,
    });
    End {
        endpoint,
        peer: peer.expect("one peer"),
        address: SocketAddr::from(([127, 0, 0, 1], port)),
        ring: Ring(vec![0; 4 << 20]),
        up: false,
        readable: 0,
    }
}

impl End {
    fn events(&mut self) {
        while let Some((_, event)) = self.endpoint.poll_event() {
            match event {
                PeerEvent::Up => self.up = true,
                PeerEvent::Session(Event::Readable { stream, until }) => {
                    self.readable = until;
                    let session = self.endpoint.session(self.peer).expect("up");
                    session.allow(stream, until + (1 << 20));
                }
                _ => {}
            }
        }
    }
}

/// Lets both ends send what they have, and time pass until one of them wants to send again.
fn step(ends: &mut [End; 2], now: &mut Duration, datagram: &mut Vec<u8>) {
    for i in 0..2 {
        loop {
            datagram.clear();
            let end = &mut ends[i];
            let sent = end.endpoint.poll_transmit(*now, datagram, &mut end.ring);
            if sent.is_none() {
                break;
            }
            let from = end.address;
            let other = &mut ends[1 - i];
            other
                .endpoint
                .handle_datagram(*now, from, Ecn::Ect0, datagram, &mut other.ring);
            other.events();
        }
        ends[i].events();
    }
    let deadlines = ends.each_ref().map(|end| end.endpoint.deadline());
    let next = deadlines.into_iter().flatten().min().expect("beacons");
    *now = next.max(*now + Duration::from_nanos(1));
}

/// Seconds that this thread has run.
fn processor() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    let run = text
        .split(' ')
        .next()
        .and_then(|text| text.parse::<u64>().ok());
    run.expect("nanoseconds come first") as f64 / 1e9
}

/// Seconds for a gigabyte in one stream of that class: of the processor, and of the clock.
fn run(class: Class) -> [f64; 2] {
    let mut ends = [end(1, 2, 1), end(2, 1, 2)];
    let (mut now, mut datagram) = (Duration::ZERO, Vec::new());
    while !ends[0].up || !ends[1].up {
        step(&mut ends, &mut now, &mut datagram);
    }
    let [near, far] = &mut ends;
    let session = near.endpoint.session(near.peer).expect("up");
    let stream = session.open(class, 0, b"to").expect("first");
    session.written(stream, BYTES);
    far.readable = 0;
    let begin = (processor(), Instant::now());
    while ends[1].readable < BYTES {
        step(&mut ends, &mut now, &mut datagram);
    }
    let took = [processor() - begin.0, begin.1.elapsed().as_secs_f64()];
    took.map(|seconds| seconds / BYTES as f64 * 1e9)
}

fn main() {
    println!("| class | CPU s/GB, both ends, median of {RUNS} | least..most | by the clock |");
    println!("|---|---|---|---|");
    for class in [Class::Bulk, Class::Normal, Class::Interactive] {
        let times: Vec<[f64; 2]> = (0..RUNS).map(|_| run(class)).collect();
        let [mut cpu, mut wall] =
            [0, 1].map(|of| times.iter().map(|both| both[of]).collect::<Vec<_>>());
        cpu.sort_by(f64::total_cmp);
        wall.sort_by(f64::total_cmp);
        println!(
            "| {class:?} | {:.2} | {:.2}..{:.2} | {:.2} |",
            cpu[RUNS / 2],
            cpu[0],
            cpu[RUNS - 1],
            wall[RUNS / 2]
        );
    }
}
