//! Boats simulated by one thread: each has a tunnel to the hub and sends one endless upload.
//!
//! Pepds of many boats would take the CPU time that the hub needs. A simulated boat has the library
//! of the tunnel and a UDP socket, but neither hosts nor a link. Its session paces the upload at a
//! link's rate. Datagrams from the hub wait for a round trip before the boat handles them.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    mem,
    net::{SocketAddr, UdpSocket},
    os::fd::AsRawFd as _,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use nix::{
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        socket::{ControlMessage, MsgFlags, sendmsg},
    },
    time::ClockId,
};
use pep_core::stream_header::{Opening, StreamHeader};
use socket2::SockRef;
use tunnel::{
    class::Class,
    crypto::{Key, public_key},
    ecn::Ecn,
    endpoint::{
        Carriers, Counters, Endpoint, EndpointConfig, Limits, PeerConfig, PeerEvent, PeerId,
    },
    session::Event,
};

use super::{
    Fleet, Result,
    hub::Used,
    strangers::{Nothing, Target},
};

/// Interval in which all boats take a turn.
const TICK: Duration = Duration::from_millis(1);
/// Time between the calls of two boats: the hub reads 20 initiations a second without a cookie.
const APART: Duration = Duration::from_millis(60);
/// Bytes that a boat has to send: at 100 Mbit/s for 3,000 years.
const ENDLESS: u64 = 1 << 60;
/// Maximum number of datagrams that one system call sends.
const BATCH: usize = 40;
/// Maximum length of a datagram in bytes.
const DATAGRAM: usize = 1500;
/// The Ect0 codepoint of ECN, with which pepd sends.
const ECT0: u32 = 2;

/// The thread that simulates the boats.
#[derive(Debug)]
pub(super) struct Boats {
    shared: Arc<Shared>,
    thread: JoinHandle<Result<()>>,
}

/// State that the thread shares with its owner.
#[derive(Debug, Default)]
struct Shared {
    over: AtomicBool,
    /// CPU time of the thread, in nanoseconds.
    cpu: AtomicU64,
    turns: AtomicU64,
}

/// Returns the private key of a boat.
fn private_key(boat: usize) -> Key {
    let mut key = [0x5a; 32];
    key[..8].copy_from_slice(&(boat as u64).to_be_bytes());
    key
}

/// Returns the public key of a boat.
pub(super) fn key_of(boat: usize) -> Key {
    public_key(&private_key(boat))
}

impl Boats {
    /// Starts the boats in the namespace of the calling thread. They upload to `server`.
    ///
    /// # Errors
    /// When the hub cannot be reached, or no thread can be started.
    pub fn start(fleet: &Fleet, hub: Target, server: SocketAddr) -> Result<Self> {
        let boats = (0..fleet.boats).map(|index| Boat::new(index, fleet, hub, server));
        let mut boats = boats.collect::<Result<Vec<_>>>()?;
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new().name("boats".to_owned());
        let thread = thread.spawn(move || {
            // At once, as the server may wait for an upload in vain.
            simulate(&mut boats, &of_thread).inspect_err(|err| eprintln!("boats: {err}"))
        })?;
        Ok(Self { shared, thread })
    }

    /// Returns what the thread has used; it waits once a turn.
    pub fn used(&self) -> Used {
        let Shared { cpu, turns, .. } = &*self.shared;
        Used {
            cpu: Duration::from_nanos(cpu.load(Relaxed)),
            waits: turns.load(Relaxed),
        }
    }

    /// Ends the boats.
    ///
    /// # Errors
    /// When a tunnel or an upload has ended before.
    pub fn end(self) -> Result<()> {
        self.shared.over.store(true, Relaxed);
        self.thread.join().expect("the thread reports errors")
    }
}

/// Lets each boat take a turn every tick.
fn simulate(boats: &mut [Boat], shared: &Shared) -> Result<()> {
    let epoll = Epoll::new(EpollCreateFlags::empty())?;
    for (index, boat) in boats.iter().enumerate() {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, index as u64);
        epoll.add(&boat.socket, event)?;
    }
    let mut ready = vec![EpollEvent::empty(); boats.len()];
    let (began, mut due) = (Instant::now(), Duration::ZERO);
    while !shared.over.load(Relaxed) {
        let count = epoll.wait(&mut ready, EpollTimeout::ZERO)?;
        for event in &ready[..count] {
            boats[event.data() as usize].receive(began.elapsed())?;
        }
        for (index, boat) in boats.iter_mut().enumerate() {
            let now = began.elapsed();
            if now >= APART * index as u32 {
                boat.take_turn(now)?;
            }
        }
        let cpu = Duration::from(ClockId::CLOCK_THREAD_CPUTIME_ID.now()?);
        shared.cpu.store(cpu.as_nanos() as u64, Relaxed);
        shared.turns.fetch_add(1, Relaxed);
        // Late turns are not made up for: the sessions know what is due.
        due = began.elapsed().max(due + TICK);
        thread::sleep(due.saturating_sub(began.elapsed()));
    }
    Ok(())
}

/// One boat.
struct Boat {
    endpoint: Endpoint,
    hub: PeerId,
    address: SocketAddr,
    socket: UdpSocket,
    stream_header: Vec<u8>,
    /// Datagrams under way to the boat, and the times of their arrival.
    under_way: VecDeque<(Duration, Vec<u8>)>,
    rtt: Duration,
    /// Buffer for the datagrams being sent.
    bytes: Vec<u8>,
}

impl Boat {
    fn new(index: usize, fleet: &Fleet, hub: Target, server: SocketAddr) -> Result<Self> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect(hub.address)?;
        socket.set_nonblocking(true)?;
        SockRef::from(&socket).set_tos_v4(ECT0)?;
        let mut endpoint = Endpoint::new(&EndpointConfig {
            private_key: private_key(index),
            seed: private_key(index),
            limits: Limits::default(),
        });
        let peer = endpoint.add_peer(PeerConfig {
            public_key: hub.key,
            psk: [0; 32],
            addresses: vec![hub.address],
            last: None,
            carriers: Carriers::Udp,
            counters: Counters::default(),
            session: tunnel_sim::rig::config(true, u64::from(fleet.rate) * 1_000_000, fleet.rtt),
        })?;
        let header = StreamHeader {
            token: index as u128 + 1,
            resume: None,
            destination: server,
            // The hub connects from the client's address, and each upload needs another.
            client: socket.local_addr()?,
            as_client: true,
            compressed: false,
            dscp: 0,
            site: "all".to_owned(),
        };
        Ok(Self {
            endpoint,
            hub: peer,
            address: hub.address,
            socket,
            stream_header: Opening::Flow(header).emit(),
            under_way: VecDeque::new(),
            rtt: fleet.rtt,
            bytes: Vec::new(),
        })
    }

    /// Takes all datagrams from the socket.
    fn receive(&mut self, now: Duration) -> Result<()> {
        let mut datagram = [0; DATAGRAM];
        while let Some(length) = unless_blocked(self.socket.recv(&mut datagram))? {
            let arrival = (now + self.rtt, datagram[..length].to_vec());
            self.under_way.push_back(arrival);
        }
        Ok(())
    }

    /// Handles what has arrived, and sends what is due.
    fn take_turn(&mut self, now: Duration) -> Result<()> {
        while self.under_way.front().is_some_and(|(at, _)| *at <= now)
            && let Some((_, mut datagram)) = self.under_way.pop_front()
        {
            self.endpoint.handle_datagram(
                now,
                self.address,
                Ecn::Ect0,
                &mut datagram,
                &mut Nothing,
            );
        }
        while let Some((_, event)) = self.endpoint.poll_event() {
            self.on_event(&event)?;
        }
        self.send(now)
    }

    /// Sends all datagrams that are due, those of one length by one system call.
    fn send(&mut self, now: Duration) -> Result<()> {
        let (mut bytes, mut lengths) = (mem::take(&mut self.bytes), Vec::new());
        bytes.clear();
        loop {
            let begin = bytes.len();
            let due = self.endpoint.poll_transmit(now, &mut bytes, &mut Nothing);
            if due.is_none() {
                break;
            }
            lengths.push(bytes.len() - begin);
        }
        let mut rest = &bytes[..];
        for alike in lengths.chunk_by(|one, next| one == next) {
            for batch in alike.chunks(BATCH) {
                let (datagrams, behind) = rest.split_at(batch.iter().sum());
                rest = behind;
                let length = u16::try_from(batch[0])?;
                let parts = [ControlMessage::UdpGsoSegments(&length)];
                let slices = [IoSlice::new(datagrams)];
                let socket = self.socket.as_raw_fd();
                let sent = sendmsg::<()>(socket, &slices, &parts, MsgFlags::empty(), None);
                // Datagrams without room are lost, as on a real path.
                unless_blocked(sent.map_err(io::Error::from))?;
            }
        }
        self.bytes = bytes;
        Ok(())
    }

    fn on_event(&mut self, event: &PeerEvent) -> Result<()> {
        match event {
            PeerEvent::Up => {
                let session = self.endpoint.session(self.hub).ok_or("no session")?;
                let stream = session.open(Class::Normal, 0, &self.stream_header)?;
                session.written(stream, ENDLESS);
                Ok(())
            }
            PeerEvent::Down(_)
            | PeerEvent::Failed(_)
            | PeerEvent::Session(
                Event::Reset { .. } | Event::Closed { .. } | Event::PeerClosed { .. },
            ) => Err(format!("a simulated boat's upload has ended: {event:?}").into()),
            PeerEvent::Session(_) | PeerEvent::Roamed(_) => Ok(()),
        }
    }
}

fn unless_blocked(result: io::Result<usize>) -> Result<Option<usize>> {
    match result {
        Ok(length) => Ok(Some(length)),
        Err(err) if err.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(err) => Err(err.into()),
    }
}
