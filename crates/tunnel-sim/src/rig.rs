//! Two sessions over a link of winkemu in virtual time, with bulk streams and messages, for
//! measurements.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    time::Duration,
};

use tunnel::{
    class::Class,
    ecn::Ecn,
    session::{Event, Outages, PacketQueue, Rate, Session, SessionConfig, SkipConfig},
    store::{NextPacket, Store},
    wire::StreamId,
};
use winkemu_link::{Direction, Engine, LinkOptions};

use crate::{
    rng::Rng,
    wire::{HEADERS, OVERHEAD},
};

/// Maximum length in bytes of a packet on the link, headers included.
const MTU: usize = 1500;

/// Returns the configuration of a side that knows its link: bit/s and round trip.
pub fn config(initiator: bool, rate: u64, rtt: Duration) -> SessionConfig {
    SessionConfig {
        initiator,
        rate: Rate::Stated(rate),
        return_rate: None,
        rtt,
        packet_start: MTU - OVERHEAD,
        packet_max: MTU - OVERHEAD,
        overhead: OVERHEAD,
        outages: Outages::After(Duration::from_secs(1)),
        stream_credit: 1 << 20,
        session_credit: 1 << 40,
        kept_max: 64 << 20,
        streams_max: 1000,
        packets: true,
        unreached: Default::default(),
        peer_packets: true,
        peer_rests: true,
        memory: None,
        overhead_max: 1.0,
        skips: SkipConfig::default(),
    }
}

/// Bytes computed from their position, so that they need not be kept.
#[derive(Debug, Default)]
pub struct Positions {
    /// New bytes that have arrived, in order or not.
    pub arrived: u64,
    /// Length of the messages that are always available outside streams, if any.
    pub endless: Option<usize>,
    /// Number of such messages that have arrived.
    pub messages: u64,
}

impl Store for Positions {
    fn read(&self, _stream: StreamId, from: u64, into: &mut [u8]) {
        let first = from as u8;
        into.iter_mut().enumerate().for_each(|(i, byte)| {
            *byte = first.wrapping_add(i as u8);
        });
    }

    fn place(&mut self, stream: StreamId, from: u64, bytes: &[u8]) {
        assert!(
            bytes
                .iter()
                .enumerate()
                .all(|(i, byte)| *byte == (from as u8).wrapping_add(i as u8)),
            "wrong bytes of stream {stream} at {from}"
        );
        self.arrived += bytes.len() as u64;
    }

    fn next_packet(
        &mut self,
        _queue: PacketQueue,
        _now: Duration,
        room: usize,
        out: &mut Vec<u8>,
    ) -> Option<NextPacket> {
        let len = self.endless?.min(room);
        out.push(0);
        out.resize(out.len() + len, 7);
        let ecn = Ecn::Ect0;
        Some(NextPacket { more: true, ecn })
    }

    fn packet(&mut self, _now: Duration, _channel: u8, _outer: Ecn, _message: &[u8]) {
        self.messages += 1;
    }
}

/// Receiver's state of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Bytes that can be read in order.
    pub readable: u64,
    /// Arrival of the last of them.
    pub finished: Option<Duration>,
}

/// Callback for readable bytes: side, stream, from, until, time.
pub type OnReadable = Box<dyn FnMut(usize, StreamId, u64, u64, Duration)>;

/// Callback that decides whether a packet is lost before the link: side, number of packets that it
/// has sent before.
pub type Loses = Box<dyn FnMut(usize, u64) -> bool>;

/// Machine that is busy with other work from time to time, and then neither takes nor sends
/// packets.
#[derive(Debug)]
struct Host {
    /// Pauses, if the machine has any.
    busy: Option<Busy>,
    /// Datagrams that have come meanwhile.
    waiting: VecDeque<Vec<u8>>,
}

#[derive(Debug)]
struct Busy {
    rng: Rng,
    /// Maximum duration of a pause.
    most: Duration,
    /// Maximum time between pauses.
    apart: Duration,
    from: Duration,
    until: Duration,
}

impl Busy {
    /// Returns the end of the pause in progress at `now`, if any.
    fn until(&mut self, now: Duration) -> Option<Duration> {
        while now >= self.until {
            self.from = self.until + self.rng.time(self.apart);
            self.until = self.from + self.rng.time(self.most);
        }
        (now >= self.from).then_some(self.until)
    }
}

impl Host {
    fn busy_until(&mut self, now: Duration) -> Option<Duration> {
        self.busy.as_mut()?.until(now)
    }
}

/// Two sessions, their link and their time. The caller plays the applications.
pub struct Rig {
    /// Link between A and B.
    pub link: Engine,
    /// Sessions at A and at B.
    pub sessions: [Session; 2],
    /// Time since the beginning.
    pub now: Duration,
    /// Received state by side and stream.
    pub progress: [HashMap<StreamId, Progress>; 2],
    /// Bytes that a receiver accepts beyond those it has.
    pub window: u64,
    /// Maximum unacknowledged bytes of a sender, for streams of [`feed`](Self::feed).
    pub ring: u64,
    /// Streams that always have data to send, up to the ring's size.
    fed: HashSet<StreamId>,
    /// Called for all readable bytes: side, stream, from, until, time.
    pub on_readable: OnReadable,
    /// Decides which packets are lost before the link; none at first.
    pub loses: Loses,
    /// Packets sent by each side, lost ones included.
    pub packets: [u64; 2],
    /// Times at which a side heard the other again.
    pub links_up: Vec<Duration>,
    /// Times at which a side no longer heard the other.
    pub links_down: Vec<Duration>,
    stores: [Positions; 2],
    hosts: [Host; 2],
}

impl Rig {
    /// Creates a rig over a link of these options, in the syntax of winkemu.
    ///
    /// # Panics
    /// Panics if the options are invalid.
    pub fn new(link: &str, seed: u64, configs: [SessionConfig; 2]) -> Self {
        Self::with_options(&link.parse().expect("options of a link"), seed, configs)
    }

    /// Creates a rig with parsed options.
    ///
    /// # Panics
    /// Panics if they name files.
    pub fn with_options(options: &LinkOptions, seed: u64, configs: [SessionConfig; 2]) -> Self {
        let options = options.resolve_without_files().expect("no files");
        Self {
            link: Engine::new(&options, seed),
            sessions: configs.map(|config| Session::new(config, Duration::ZERO)),
            now: Duration::ZERO,
            progress: Default::default(),
            window: 1 << 32,
            ring: 1 << 32,
            fed: HashSet::new(),
            on_readable: Box::new(|_, _, _, _, _| {}),
            loses: Box::new(|_, _| false),
            packets: [0; 2],
            links_up: Vec::new(),
            links_down: Vec::new(),
            stores: Default::default(),
            hosts: [(); 2].map(|()| Host {
                busy: None,
                waiting: VecDeque::new(),
            }),
        }
    }

    /// Makes both machines pause for up to `most`, up to `apart` after the last pause; uniformly
    /// drawn.
    pub fn keep_busy(&mut self, seed: u64, most: Duration, apart: Duration) {
        let now = self.now;
        for (side, host) in self.hosts.iter_mut().enumerate() {
            host.busy = Some(Busy {
                rng: Rng::new(seed * 2 + side as u64),
                most,
                apart,
                from: now,
                until: now,
            });
        }
    }

    /// Opens a stream from side 0 with `bytes` bytes, and finishes it.
    ///
    /// # Panics
    /// Panics if there are too many.
    pub fn upload(&mut self, class: Class, bytes: u64) -> StreamId {
        let stream = self.sessions[0]
            .open(class, 0, b"")
            .expect("below the limit");
        self.sessions[0].written(stream, bytes);
        self.sessions[0].finish(stream);
        stream
    }

    /// Opens an endless stream from side 0. `ring` bounds the sender's unacknowledged bytes and the
    /// receiver's credit.
    ///
    /// # Panics
    /// Panics if there are too many.
    pub fn feed(&mut self, class: Class, ring: u64) -> StreamId {
        (self.window, self.ring) = (ring, ring);
        let stream = self.sessions[0]
            .open(class, 0, b"")
            .expect("below the limit");
        self.sessions[0].written(stream, ring);
        self.fed.insert(stream);
        stream
    }

    /// Returns the new bytes that have arrived at side 1, in order or not.
    pub fn arrived(&self) -> u64 {
        self.stores[1].arrived
    }

    /// Returns the bytes of a stream of side 0 that side 1 can read in order.
    pub fn readable(&self, stream: StreamId) -> u64 {
        self.progress[1]
            .get(&stream)
            .map_or(0, |progress| progress.readable)
    }

    /// Returns when side 1 had all of a stream.
    pub fn finished(&self, stream: StreamId) -> Option<Duration> {
        self.progress[1].get(&stream)?.finished
    }

    /// Advances the time until `until`, or until a condition holds.
    ///
    /// # Panics
    /// Panics if a session violates the protocol or a wrong byte arrives.
    pub fn run(&mut self, until: Duration, mut done: impl FnMut(&Self) -> bool) {
        loop {
            self.send();
            if done(self) {
                return;
            }
            let link = self.link.poll_timeout().map(Duration::from_nanos);
            let [a, b] = [0, 1].map(|side| self.deadline(side));
            let next = [link, a, b].into_iter().flatten().min();
            let next = next.unwrap_or(until);
            if next > until {
                self.now = until;
                return;
            }
            self.now = if next > self.now {
                next
            } else {
                self.now + Duration::from_nanos(1)
            };
            self.deliver();
        }
    }

    /// Makes side 0 always have messages outside streams of this length.
    pub fn send_packets(&mut self, class: Class, len: usize) {
        self.stores[0].endless = Some(len);
        let queue = self.sessions[0].open_packets(class, 0);
        self.sessions[0].set_packets_ready(queue.expect("below the limit"), true);
    }

    /// Lets side 0 have no more messages outside streams.
    pub fn stop_packets(&mut self) {
        self.stores[0].endless = None;
    }

    /// Returns the number of messages outside streams received at side 1.
    pub fn messages(&self) -> u64 {
        self.stores[1].messages
    }

    /// Returns when a side has to act without input.
    fn deadline(&mut self, side: usize) -> Option<Duration> {
        let busy = self.hosts[side].busy_until(self.now);
        let own = self.sessions[side].deadline();
        match busy {
            Some(until) if !self.hosts[side].waiting.is_empty() => Some(until),
            Some(until) => own.map(|own| own.max(until)),
            None => own,
        }
    }

    fn send(&mut self) {
        for (side, direction) in [(0, Direction::AtoB), (1, Direction::BtoA)] {
            if self.hosts[side].busy_until(self.now).is_some() {
                continue;
            }
            self.take_waiting(side);
            loop {
                let mut datagram = vec![0; OVERHEAD];
                let session = &mut self.sessions[side];
                let Some(written) =
                    session.poll_packet(self.now, &mut datagram, &mut self.stores[side])
                else {
                    break;
                };
                datagram[..8].copy_from_slice(&written.number.to_be_bytes());
                let before = self.packets[side];
                self.packets[side] += 1;
                if (self.loses)(side, before) {
                    continue;
                }
                let now = self.now.as_nanos() as u64;
                self.link.handle_packet(direction, &datagram, now);
            }
            self.events(side);
        }
    }

    fn deliver(&mut self) {
        let now = self.now.as_nanos() as u64;
        while let Some((direction, packet)) = self.link.poll_deliver(now) {
            let side = match direction {
                Direction::AtoB => 1,
                Direction::BtoA => 0,
            };
            if self.hosts[side].busy_until(self.now).is_some() {
                self.hosts[side].waiting.push_back(packet.bytes.to_vec());
            } else {
                self.take_waiting(side);
                self.take(side, &packet.bytes);
            }
            self.link.recycle(packet);
        }
    }

    fn take_waiting(&mut self, side: usize) {
        while let Some(packet) = self.hosts[side].waiting.pop_front() {
            self.take(side, &packet);
        }
    }

    fn take(&mut self, side: usize, packet: &[u8]) {
        let number = u64::from_be_bytes(packet[..8].try_into().expect("eight"));
        let (plain, len) = (&packet[OVERHEAD..], packet.len() - HEADERS);
        let store = &mut self.stores[side];
        self.sessions[side]
            .handle_packet(self.now, number, plain, len, Ecn::NotEct, store)
            .expect("valid bytes from the peer");
        self.events(side);
    }

    fn events(&mut self, side: usize) {
        while let Some(event) = self.sessions[side].poll_event() {
            match event {
                Event::Readable { stream, until } => {
                    let progress = self.progress[side].entry(stream).or_default();
                    let from = std::mem::replace(&mut progress.readable, until);
                    self.sessions[side].allow(stream, until + self.window);
                    (self.on_readable)(side, stream, from, until, self.now);
                }
                Event::Finished { stream } => {
                    let progress = self.progress[side].entry(stream).or_default();
                    progress.finished = Some(self.now);
                    self.sessions[side].finish(stream);
                }
                Event::Acked { stream, until } if side == 0 && self.fed.contains(&stream) => {
                    self.sessions[0].written(stream, until + self.ring);
                }
                Event::LinkUp => self.links_up.push(self.now),
                Event::LinkDown => self.links_down.push(self.now),
                _ => {}
            }
        }
    }
}

/// Returns median, minimum and maximum.
pub fn spread(values: &mut [f64]) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (
        values[values.len() / 2],
        values[0],
        values[values.len() - 1],
    )
}
