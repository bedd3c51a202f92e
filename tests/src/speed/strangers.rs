//! Goodput of an honest flow in a tunnel while unauthenticated senders flood the far end.

use std::{
    io::{IoSlice, Read as _, Write as _},
    net::{SocketAddr, TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, sendmmsg};
use std::os::fd::AsRawFd as _;
use tunnel::{
    crypto::Key,
    endpoint::{Carriers, Counters, Endpoint, EndpointConfig, Limits, PeerConfig, PeerId, Stores},
    store::Store,
    wire::StreamId,
};

use super::{Bed, Result};

/// Bytes of each write of the honest flow, which offers 100 Mbit/s, far below pepd's capacity.
const PIECE: usize = 125_000;
const EVERY: Duration = Duration::from_millis(10);
/// Unauthenticated datagrams per second.
const PER_SECOND: u32 = 100_000;
/// Datagrams per call, one call every millisecond.
const BATCH: usize = 100;
/// The number of different initiations, each from a separate sender that knows the far end's public
/// key.
const INITIATIONS: u64 = 1000;
/// The time before bytes are counted.
const WARM_UP: Duration = Duration::from_millis(500);

/// The far end of a tunnel, as an unauthenticated sender knows it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    /// The listening address.
    pub address: SocketAddr,
    /// The public key.
    pub key: Key,
}

/// The result under the flood.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flooded {
    /// The honest flow's goodput, as a share of that without the flood.
    pub left: f64,
    /// Flood datagrams per second.
    pub per_second: f64,
    /// Bytes of answers, as a share of the flood's bytes.
    pub answered: f64,
}

/// Sends through the tunnel for a while, and again during a flood of its far end.
pub(super) fn flood(bed: &Bed, target: Target, time: Duration) -> Result<Flooded> {
    let alone = goodput(bed, time)?;
    let datagrams = datagrams(target)?;
    let over = AtomicBool::new(false);
    let strangers = Strangers {
        datagrams: &datagrams,
        target: target.address,
        over: &over,
    };
    thread::scope(|scope| {
        let flood = scope.spawn(|| bed.beside_the_far_end().enter(|| strangers.send())?);
        let beside = goodput(bed, time);
        over.store(true, Relaxed);
        let sent = flood.join().expect("the flood reports errors")?;
        Ok(Flooded {
            left: beside? / alone,
            per_second: sent.count as f64 / sent.took.as_secs_f64(),
            answered: sent.answered as f64 / sent.bytes as f64,
        })
    })
}

/// Returns the bytes per second at the receiver of one upload that offers 100 Mbit/s.
fn goodput(bed: &Bed, time: Duration) -> Result<f64> {
    let (listener, address) = bed.listen()?;
    let client = bed.connect(address, 1)?.remove(0);
    let (mut server, _) = listener.accept()?;
    let (over, received) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let sending = scope.spawn(|| offer(client, &over));
        let receiving = scope.spawn(|| -> Result<()> {
            let mut buffer = vec![0; PIECE];
            loop {
                match server.read(&mut buffer)? {
                    0 => return Ok(()),
                    count => received.fetch_add(count as u64, Relaxed),
                };
            }
        });
        thread::sleep(WARM_UP);
        let (before, began) = (received.load(Relaxed), Instant::now());
        thread::sleep(time);
        let (after, took) = (received.load(Relaxed), began.elapsed());
        over.store(true, Relaxed);
        sending.join().expect("errors are reported")?;
        receiving.join().expect("errors are reported")?;
        Ok((after - before) as f64 / took.as_secs_f64())
    })
}

fn offer(mut client: TcpStream, over: &AtomicBool) -> Result<()> {
    let piece = vec![0x5a; PIECE];
    let mut due = Instant::now();
    while !over.load(Relaxed) {
        client.write_all(&piece)?;
        due += EVERY;
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    Ok(())
}

struct Strangers<'a> {
    datagrams: &'a [Vec<u8>],
    target: SocketAddr,
    over: &'a AtomicBool,
}

/// Bytes of the flood, and of the answers.
struct Sent {
    count: u64,
    bytes: u64,
    answered: u64,
    took: Duration,
}

impl Strangers<'_> {
    fn send(&self) -> Result<Sent> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect(self.target)?;
        socket.set_nonblocking(true)?;
        let began = Instant::now();
        let every = Duration::from_secs(1) * BATCH as u32 / PER_SECOND;
        let mut sent = Sent {
            count: 0,
            bytes: 0,
            answered: 0,
            took: Duration::ZERO,
        };
        let mut batches = self.datagrams.chunks_exact(BATCH).cycle();
        let mut due = began;
        while !self.over.load(Relaxed) {
            let batch = batches.next().ok_or("no datagrams to send")?;
            send_all(&socket, batch)?;
            sent.count += batch.len() as u64;
            sent.bytes += batch
                .iter()
                .map(|datagram| datagram.len() as u64)
                .sum::<u64>();
            sent.answered += answers(&socket);
            due += every;
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        sent.took = began.elapsed();
        Ok(sent)
    }
}

fn send_all(socket: &UdpSocket, batch: &[Vec<u8>]) -> Result<()> {
    let parts: Vec<_> = batch
        .iter()
        .map(|datagram| [IoSlice::new(datagram)])
        .collect();
    let mut headers = MultiHeaders::<SockaddrStorage>::preallocate(batch.len(), None);
    let nobody = vec![None; batch.len()];
    let sent = sendmmsg(
        socket.as_raw_fd(),
        &mut headers,
        &parts,
        &nobody,
        [],
        MsgFlags::empty(),
    );
    match sent {
        // Datagrams without room are lost, as on a real path.
        Ok(_) | Err(nix::Error::EAGAIN | nix::Error::ENOBUFS | nix::Error::ECONNREFUSED) => Ok(()),
        Err(err) => Err(err.into()),
    }
}

fn answers(socket: &UdpSocket) -> u64 {
    let mut datagram = [0; 2048];
    let mut bytes = 0;
    while let Ok(length) = socket.recv(&mut datagram) {
        bytes += length as u64;
    }
    bytes
}

/// Returns the flood's datagrams in turns: noise of 100 to 1,300 bytes, imitated session data, and
/// initiations with a valid mac1, which needs only the public key.
fn datagrams(target: Target) -> Result<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    for stranger in 0..INITIATIONS {
        let length = 100 + (stranger as usize * 7) % 1200;
        let byte = |seed: u64| move |at: usize| (seed ^ at as u64).wrapping_mul(0x9e37_79b9) as u8;
        all.push((0..length).map(byte(stranger)).collect());
        let mut data: Vec<u8> = (0..length).map(byte(!stranger)).collect();
        data[0] = DATA;
        all.push(data);
        all.push(initiation(stranger, target)?);
    }
    all.truncate(all.len() / BATCH * BATCH);
    Ok(all)
}

/// The type of a datagram of a session (docs/protocol.md).
const DATA: u8 = 5;

fn initiation(stranger: u64, target: Target) -> Result<Vec<u8>> {
    let mut key = [0x5a; 32];
    key[..8].copy_from_slice(&stranger.to_be_bytes());
    let mut endpoint = Endpoint::new(&EndpointConfig {
        private_key: key,
        seed: key,
        limits: Limits::default(),
    });
    endpoint.add_peer(PeerConfig {
        public_key: target.key,
        psk: [0; 32],
        addresses: vec![target.address],
        last: None,
        carriers: Carriers::Udp,
        counters: Counters::default(),
        session: tunnel_sim::rig::config(true, 100_000_000, Duration::from_millis(1)),
    })?;
    let mut datagram = Vec::new();
    let transmit = endpoint.poll_transmit(Duration::ZERO, &mut datagram, &mut Nothing);
    transmit.ok_or("a peer with an address is called at once")?;
    Ok(datagram)
}

/// Streams that only have zeros.
pub(super) struct Nothing;

impl Store for Nothing {
    fn read(&self, _: StreamId, _: u64, into: &mut [u8]) {
        into.fill(0);
    }

    fn place(&mut self, _: StreamId, _: u64, _: &[u8]) {}
}

impl Stores for Nothing {
    type Store = Self;

    fn store_of(&mut self, _: PeerId) -> &mut Self {
        self
    }
}
