//! What it costs to carry bytes through a tunnel, without sockets: processor seconds for a gigabyte, both ends together.
//!
//!     cargo run --release -p tunnel --example cost [MEGABYTES]
//!
//! Two endpoints hand datagrams to each other in virtual time, on a link of 2 Gbit/s and 2 ms that loses
//! nothing. The second line is the same by sessions alone, so the difference is what handshakes, seals and the
//! way through the endpoint cost.

use std::{net::SocketAddr, time::Duration};

use tunnel::{
    class::Class,
    crypto::public_key,
    endpoint::{Endpoint, EndpointConfig, Limits, PeerConfig, PeerEvent, PeerId, Stores},
    session::{Event, Outages, Rate, Session, SessionConfig},
    store::Store,
    wire::StreamId,
};

const TICK: Duration = Duration::from_micros(100);
const ONE_WAY_TICKS: usize = 10;
const CREDIT: u64 = 64 << 20;

/// Bytes that are the same everywhere, read from and placed in a buffer.
struct Bytes(Vec<u8>);

impl Bytes {
    fn new() -> Self {
        Self(vec![7; 1 << 17])
    }
}

impl Store for Bytes {
    fn read(&self, _: StreamId, from: u64, into: &mut [u8]) {
        let from = from as usize % (1 << 16);
        into.copy_from_slice(&self.0[from..from + into.len()]);
    }

    fn place(&mut self, _: StreamId, from: u64, bytes: &[u8]) {
        let from = from as usize % (1 << 16);
        self.0[from..from + bytes.len()].copy_from_slice(bytes);
    }
}

impl Stores for Bytes {
    type Store = Self;

    fn of(&mut self, _: PeerId) -> &mut Self {
        self
    }
}

fn config(initiator: bool) -> SessionConfig {
    SessionConfig {
        initiator,
        rate: Rate::Stated(2_000_000_000),
        return_rate: Some(2_000_000_000),
        rtt: 2 * TICK * ONE_WAY_TICKS as u32,
        packet_start: 1400,
        packet_max: 1400,
        overhead: 53,
        outages: Outages::After(Duration::from_secs(1)),
        stream_credit: CREDIT,
        session_credit: CREDIT,
        streams_max: 10,
        overhead_max: 0.5,
    }
}

/// One end, whatever it is made of.
trait End {
    fn session(&mut self) -> Option<&mut Session>;
    fn receive(&mut self, now: Duration, datagram: &mut [u8]);
    fn send(&mut self, now: Duration, out: &mut Vec<u8>) -> bool;
    fn event(&mut self) -> Option<Event>;
}

struct Sealed {
    endpoint: Endpoint,
    bytes: Bytes,
    peer: PeerId,
}

fn address(host: u8) -> SocketAddr {
    ([192, 0, 2, host], 5001).into()
}

impl Sealed {
    fn new(host: u8) -> Self {
        let mut endpoint = Endpoint::new(&EndpointConfig {
            private_key: [host; 32],
            seed: [host; 32],
            limits: Limits::default(),
        });
        let peer = endpoint.add_peer(PeerConfig {
            public_key: public_key(&[3 - host; 32]),
            psk: [0; 32],
            address: (host == 1).then(|| address(2)),
            session: config(false),
        });
        Self {
            endpoint,
            bytes: Bytes::new(),
            peer: peer.expect("the first peer"),
        }
    }
}

impl End for Sealed {
    fn session(&mut self) -> Option<&mut Session> {
        self.endpoint.session(self.peer)
    }

    fn receive(&mut self, now: Duration, datagram: &mut [u8]) {
        let from = address(1);
        self.endpoint
            .handle_datagram(now, from, false, datagram, &mut self.bytes);
    }

    fn send(&mut self, now: Duration, out: &mut Vec<u8>) -> bool {
        self.endpoint
            .poll_transmit(now, out, &mut self.bytes)
            .is_some()
    }

    fn event(&mut self) -> Option<Event> {
        loop {
            if let (_, PeerEvent::Session(event)) = self.endpoint.poll_event()? {
                return Some(event);
            }
        }
    }
}

struct Plain {
    session: Session,
    bytes: Bytes,
}

impl End for Plain {
    fn session(&mut self) -> Option<&mut Session> {
        Some(&mut self.session)
    }

    fn receive(&mut self, now: Duration, datagram: &mut [u8]) {
        let (number, packet) = datagram.split_at(8);
        let number = u64::from_be_bytes(number.try_into().expect("eight bytes"));
        let length = packet.len() + 25;
        let handled =
            self.session
                .handle_packet(now, number, packet, length, false, &mut self.bytes);
        handled.expect("an honest peer");
    }

    fn send(&mut self, now: Duration, out: &mut Vec<u8>) -> bool {
        out.extend_from_slice(&[0; 8]);
        let written = self.session.poll_packet(now, out, &self.bytes);
        if let Some(written) = written {
            out[..8].copy_from_slice(&written.number.to_be_bytes());
        }
        written.is_some()
    }

    fn event(&mut self) -> Option<Event> {
        self.session.poll_event()
    }
}

/// Spent by this process (proc(5): schedstat of the only thread).
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/schedstat").expect("Linux");
    let first = stat.split(' ').next().and_then(|field| field.parse().ok());
    first.map_or(0.0, |nanoseconds: f64| nanoseconds / 1e9)
}

/// Sends so many bytes from the first to the second one. Seconds of processor time, and of virtual time.
fn carry(ends: &mut [impl End; 2], bytes: u64) -> (f64, f64) {
    let begin = processor_seconds();
    let mut flying = [const { Vec::<Vec<Vec<u8>>>::new() }; 2];
    for way in &mut flying {
        way.resize(ONE_WAY_TICKS, Vec::new());
    }
    let (mut spare, mut stream, mut read) = (Vec::new(), None, 0);
    for tick in 0.. {
        let now = TICK * tick as u32;
        for at in 0..2 {
            let mut arrived = std::mem::take(&mut flying[1 - at][tick % ONE_WAY_TICKS]);
            for mut datagram in arrived.drain(..) {
                ends[at].receive(now, &mut datagram);
                spare.push(datagram);
            }
            loop {
                let mut datagram: Vec<u8> = spare.pop().unwrap_or_default();
                datagram.clear();
                if !ends[at].send(now, &mut datagram) {
                    spare.push(datagram);
                    break;
                }
                arrived.push(datagram);
            }
            flying[at][tick % ONE_WAY_TICKS] = arrived;
        }
        if stream.is_none()
            && let Some(session) = ends[0].session()
        {
            let opened = session.open(Class::Bulk, 0, b"").expect("the first");
            session.written(opened, bytes);
            session.finish(opened);
            stream = Some(opened);
        }
        while ends[0].event().is_some() {}
        while let Some(event) = ends[1].event() {
            if let Event::Readable { stream, until } = event {
                read = until;
                let session = ends[1].session().expect("it has events");
                session.allow(stream, until + CREDIT);
                session.allow_session(until + CREDIT);
            }
        }
        if read == bytes {
            return (processor_seconds() - begin, now.as_secs_f64());
        }
    }
    unreachable!("the loop has no end");
}

fn main() {
    let megabytes = std::env::args().nth(1).map_or(Ok(500), |text| text.parse());
    let bytes = megabytes.expect("a number of megabytes") * 1_000_000;
    let print = |what, (took, virtually): (f64, f64)| {
        let per_gigabyte = took * 1e9 / bytes as f64;
        let rate = bytes as f64 * 8e-6 / virtually;
        println!("{what:10} {per_gigabyte:.3} s/GB, {rate:.0} Mbit/s of virtual time");
    };
    print(
        "endpoints",
        carry(&mut [Sealed::new(1), Sealed::new(2)], bytes),
    );
    let plain = |initiator| Plain {
        session: Session::new(config(initiator), Duration::ZERO),
        bytes: Bytes::new(),
    };
    print("sessions", carry(&mut [plain(true), plain(false)], bytes));
}
