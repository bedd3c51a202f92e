//! CPU cost of a gigabyte through both ends of a tunnel together, without sockets: packing,
//! sealing, opening, placing, reports; and of datagrams.
//!
//! Virtual time inside. Results are CPU seconds of this thread (`/proc/thread-self/schedstat`,
//! proc(5)), unaffected by other processes, and wall-clock seconds.
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
    endpoint::{
        Carriers, Counters, Endpoint, EndpointConfig, Limits, PeerConfig, PeerEvent, PeerId, Stores,
    },
    session::{Event, Outages, PacketQueue, Rate, SessionConfig, SkipConfig},
    store::{NextPacket, Store},
    wire::StreamId,
};

const BYTES: u64 = 256 << 20;
/// Number and lengths of datagrams.
const PACKETS: u64 = 200_000;
const LENGTHS: [usize; 2] = [1400, 200];
const RUNS: usize = 5;

/// Ring of bytes for any stream; datagrams left to send, their length, and those received.
struct Ring {
    bytes: Vec<u8>,
    left: u64,
    len: usize,
    came: u64,
}

impl Store for Ring {
    fn read(&self, _stream: StreamId, from: u64, into: &mut [u8]) {
        let at = from as usize % (self.bytes.len() - into.len());
        into.copy_from_slice(&self.bytes[at..at + into.len()]);
    }

    fn place(&mut self, _stream: StreamId, from: u64, bytes: &[u8]) {
        let at = from as usize % (self.bytes.len() - bytes.len());
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn next_packet(
        &mut self,
        _queue: PacketQueue,
        _now: Duration,
        room: usize,
        out: &mut Vec<u8>,
    ) -> Option<NextPacket> {
        self.left = self.left.checked_sub(1)?;
        let at = self.left as usize % 1000;
        out.push(1);
        out.extend_from_slice(&self.bytes[at..at + self.len.min(room)]);
        Some(NextPacket {
            more: self.left > 0,
            ecn: Ecn::Ect0,
        })
    }

    fn packet(&mut self, _now: Duration, _channel: u8, _outer: Ecn, message: &[u8]) {
        self.came += 1;
        let at = self.came as usize % 1000;
        self.bytes[at..at + message.len()].copy_from_slice(message);
    }
}

impl Stores for Ring {
    type Store = Self;

    fn store_of(&mut self, _peer: PeerId) -> &mut Self {
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
        kept_max: 64 << 20,
        streams_max: 100,
        packets: true,
        peer_packets: true,
        peer_rests: false,
        memory: None,
        overhead_max: 1.0,
        skips: SkipConfig::default(),
    };
    let peer = endpoint.add_peer(PeerConfig {
        public_key: public_key(&[other; 32]),
        psk: [7; 32],
        addresses: vec![SocketAddr::from(([127, 0, 0, 1], 3 - port))],
        last: None,
        carriers: Carriers::Udp,
        counters: Counters::default(),
        session,
    });
    End {
        endpoint,
        peer: peer.expect("one peer"),
        address: SocketAddr::from(([127, 0, 0, 1], port)),
        ring: Ring {
            bytes: vec![0; 4 << 20],
            left: 0,
            len: 0,
            came: 0,
        },
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

/// Lets both ends send what they have, and time pass until one of them has more to send.
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

/// Returns the CPU seconds of this thread.
fn cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    let run = text
        .split(' ')
        .next()
        .and_then(|text| text.parse::<u64>().ok());
    run.expect("nanoseconds come first") as f64 / 1e9
}

fn joined(now: &mut Duration, datagram: &mut Vec<u8>) -> [End; 2] {
    let mut ends = [end(1, 2, 1), end(2, 1, 2)];
    while !ends[0].up || !ends[1].up {
        step(&mut ends, now, datagram);
    }
    ends
}

/// Returns CPU and wall-clock seconds for a million datagrams of that length.
fn run_packets(len: usize) -> [f64; 2] {
    let (mut now, mut datagram) = (Duration::ZERO, Vec::new());
    let mut ends = joined(&mut now, &mut datagram);
    (ends[0].ring.left, ends[0].ring.len) = (PACKETS, len);
    let session = ends[0].endpoint.session(ends[0].peer).expect("up");
    let queue = session.open_packets(Class::Normal, 0).expect("first");
    session.set_packets_ready(queue, true);
    let begin = (cpu(), Instant::now());
    while ends[1].ring.came < PACKETS {
        step(&mut ends, &mut now, &mut datagram);
    }
    let took = [cpu() - begin.0, begin.1.elapsed().as_secs_f64()];
    took.map(|seconds| seconds / PACKETS as f64 * 1e6)
}

/// Returns CPU and wall-clock seconds for a gigabyte in one stream of that class.
fn run(class: Class) -> [f64; 2] {
    let (mut now, mut datagram) = (Duration::ZERO, Vec::new());
    let mut ends = joined(&mut now, &mut datagram);
    let [near, far] = &mut ends;
    let session = near.endpoint.session(near.peer).expect("up");
    let stream = session.open(class, 0, b"to").expect("first");
    session.written(stream, BYTES);
    far.readable = 0;
    let begin = (cpu(), Instant::now());
    while ends[1].readable < BYTES {
        step(&mut ends, &mut now, &mut datagram);
    }
    let took = [cpu() - begin.0, begin.1.elapsed().as_secs_f64()];
    took.map(|seconds| seconds / BYTES as f64 * 1e9)
}

/// Prints medians of CPU and wall-clock times, and the extremes of the former.
fn table(name: &str, run: impl Fn() -> [f64; 2]) {
    let times: Vec<[f64; 2]> = (0..RUNS).map(|_| run()).collect();
    let [mut cpu, mut wall] =
        [0, 1].map(|of| times.iter().map(|both| both[of]).collect::<Vec<_>>());
    cpu.sort_by(f64::total_cmp);
    wall.sort_by(f64::total_cmp);
    println!(
        "| {name} | {:.2} | {:.2}..{:.2} | {:.2} |",
        cpu[RUNS / 2],
        cpu[0],
        cpu[RUNS - 1],
        wall[RUNS / 2]
    );
}

fn main() {
    println!("| class | CPU s/GB, both ends, median of {RUNS} | min..max | wall s/GB |");
    println!("|---|---|---|---|");
    for class in [Class::Bulk, Class::Normal, Class::Interactive] {
        table(&format!("{class:?}"), || run(class));
    }
    println!();
    println!("| datagrams | CPU s/million, both ends | min..max | wall s/million |");
    println!("|---|---|---|---|");
    for len in LENGTHS {
        table(&format!("{len} B"), || run_packets(len));
    }
}
