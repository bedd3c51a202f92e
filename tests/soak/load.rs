//! Flows by all sites of both boats. Each byte is checked.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::TcpStream,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
};

use pepd_tests::{
    bed::Family,
    echo::EchoServer,
    objects::{self, ObjectServer},
    outcome::reset,
    payload::{Payload, receive, run_seed, size},
    tunnel::TunnelBed,
    wait::PATIENCE,
};

/// Places of the modes `tunnel`, `split` and `packet`. Each has a port of each kind below, plus its
/// place.
const PLACES: [u16; 3] = [0, 1, 2];
const OBJECTS: u16 = 7000;
const ECHO: u16 = 7010;
/// Nothing listens there.
const CLOSED: u16 = 7020;
/// Idle flows of each pepd: at a boat those of modes `tunnel` and `split`, and at the hub those of
/// mode `tunnel` of both boats.
pub const IDLE: u64 = 2;
/// Bytes of long flows, which last across an event; maximum bytes of short ones; bytes after which
/// a client resets its flow.
const LONG: u64 = 500_000;
const SHORT: u64 = 30_000;
const RESET: u64 = 65_536;
const LASTS: &str = "flows last";

/// A client, and the place of a site.
type Way = (&'static str, u16);

fn ways() -> impl Iterator<Item = Way> {
    let clients = ["client", "client2"].into_iter();
    clients.flat_map(|client| PLACES.map(|place| (client, place)))
}

/// Servers, and flows that are idle between cycles.
pub struct Load<'a> {
    bed: &'a TunnelBed,
    seed: AtomicU64,
    idle: Vec<TcpStream>,
    _servers: [(ObjectServer, EchoServer); 3],
}

impl<'a> Load<'a> {
    pub fn start(bed: &'a TunnelBed) -> Self {
        let listen = |port| bed.host("server").listen(bed.server_at(Family::V4, port));
        let servers = PLACES.map(|place| {
            let objects = ObjectServer::start(listen(OBJECTS + place));
            (objects, EchoServer::start(listen(ECHO + place)))
        });
        let mut load = Self {
            bed,
            seed: AtomicU64::new(run_seed()),
            idle: Vec::new(),
            _servers: servers,
        };
        load.idle = ways().map(|way| load.connect(way, ECHO)).collect();
        load
    }

    /// Runs the flows of a cycle beside an event. Then each idle flow carries bytes.
    pub fn run(&self, event: impl FnOnce()) {
        thread::scope(|scope| {
            for way in ways() {
                scope.spawn(move || self.short(way));
                scope.spawn(move || self.get(way, LONG, LONG));
                scope.spawn(move || self.upload(way));
                scope.spawn(move || self.bad_ends(way));
            }
            event();
        });
        for mut stream in &self.idle {
            let (mut sent, mut answer) = (Vec::new(), [0; 1000]);
            let payload = Payload::new(self.seed(), 1000).send(&mut sent);
            payload.expect("a vector takes all");
            stream.write_all(&sent).expect(LASTS);
            stream.read_exact(&mut answer).expect(LASTS);
            assert!(answer[..] == sent, "other bytes of {stream:?}");
        }
    }

    fn seed(&self) -> u64 {
        self.seed.fetch_add(1, Relaxed)
    }

    fn connect(&self, (client, place): Way, port: u16) -> TcpStream {
        let to = self.bed.server_at(Family::V4, port + place);
        let stream = self.bed.host(client).connect(to).expect("an answer");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream.set_write_timeout(Some(PATIENCE)).expect("a socket");
        stream
    }

    fn short(&self, way: Way) {
        for _ in 0..8 {
            let len = size(self.seed(), SHORT);
            self.get(way, len, len);
        }
    }

    /// Half-closes before the answer.
    fn upload(&self, way: Way) {
        let (seed, mut stream) = (self.seed(), self.connect(way, OBJECTS));
        let stored = objects::put_and_wait(&mut stream, seed, LONG).expect(LASTS);
        assert_eq!(stored, Payload::new(seed, LONG).sum(), "{stream:?}");
    }

    /// Resets two flows in their middle, and is refused once.
    fn bad_ends(&self, way: Way) {
        for _ in 0..2 {
            reset(self.get(way, LONG, RESET));
        }
        let to = self.bed.server_at(Family::V4, CLOSED + way.1);
        // pepd may answer before the server does.
        let refused = self.bed.host(way.0).connect(to);
        let refused = refused.and_then(|mut stream| stream.read(&mut [0]));
        let kind = refused.expect_err("a refusal").kind();
        let kinds = [ErrorKind::ConnectionRefused, ErrorKind::ConnectionReset];
        assert!(kinds.contains(&kind), "{way:?}: {kind}");
    }

    /// Requests an object, and reads its first bytes, or all of it to the end of the flow.
    fn get(&self, way: Way, len: u64, read: u64) -> TcpStream {
        let (seed, mut stream) = (self.seed(), self.connect(way, OBJECTS));
        objects::get(&mut stream, seed, len).expect(LASTS);
        let most = if read < len { read } else { u64::MAX };
        let found = receive(&mut (&stream).take(most)).expect(LASTS);
        let expected = (read, Payload::new(seed, read).sum());
        assert_eq!(found, expected, "{stream:?}");
        stream
    }
}
