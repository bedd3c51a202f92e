//! Two sessions over a link of winkemu in virtual time, with bulk streams and messages, for measuring.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    time::Duration,
};

use tunnel::{
    class::Class,
    ecn::Ecn,
    session::{Event, Outages, PacketQueue, Rate, Session, SessionConfig},
    store::{NextPacket, Store},
    wire::StreamId,
};
use winkemu_link::{Direction, Engine, LinkOptions};

use crate::{
    rng::Rng,
    wire::{HEADERS, OVERHEAD},
};

/// Bytes of the longest packet on the link, headers included.
const MTU: usize = 1500;

/// A side that knows its link: bit/s and round trip.
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
        streams_max: 1000,
        packets: true,
        peer_packets: true,
        memory: None,
        overhead_max: 1.0,
    }
}

/// Bytes that follow from their position, so that they need not be kept.
#[derive(Debug, Default)]
pub struct Positions {
    /// New bytes that have arrived, in order or not.
    pub arrived: u64,
    /// How long packets are that there always are beside streams, where that is so.
    pub endless: Option<usize>,
    /// Such packets that have arrived.
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

/// What is kept of a stream at its receiver.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Bytes that can be read in order.
    pub readable: u64,
    /// When the last of them came.
    pub finished: Option<Duration>,
}

/// Told of everything readable: side, stream, from, until, when.
pub type OnReadable = Box<dyn FnMut(usize, StreamId, u64, u64, Duration)>;

/// A machine that has other things to do, too: now and then it neither takes nor sends packets for a while.
#[derive(Debug)]
struct Host {
    /// Until it stands still for that long at most, each time so long on average at most.
    busy: Option<Busy>,
    /// What has come meanwhile: number, plain text and length.
    waiting: VecDeque<Vec<u8>>,
}

#[derive(Debug)]
struct Busy {
    rng: Rng,
    /// At most so long at a time.
    most: Duration,
    /// From one time to the next, at most.
    apart: Duration,
    from: Duration,
    until: Duration,
}

impl Busy {
    /// Until when it stands still at `now`, if it does.
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

/// Two sessions, their link and their time. What applications do is up to who holds it.
pub struct Rig {
    /// Between the two, A and B.
    pub link: Engine,
    /// At A and at B.
    pub sessions: [Session; 2],
    /// Since the beginning.
    pub now: Duration,
    /// By side and stream.
    pub progress: [HashMap<StreamId, Progress>; 2],
    /// How much a receiver takes ahead of what it has.
    pub window: u64,
    /// How much a sender keeps that is not acknowledged, for streams of [`feed`](Self::feed).
    pub ring: u64,
    /// Streams that always have something to send, as far as the ring goes.
    fed: HashSet<StreamId>,
    /// Everything readable, as it becomes so: side, stream, from, until, when.
    pub on_readable: OnReadable,
    /// When either side heard the other again.
    pub links_up: Vec<Duration>,
    stores: [Positions; 2],
    hosts: [Host; 2],
}

impl Rig {
    /// Over a link of these options, as winkemu reads them.
    ///
    /// # Panics
    /// If they are none.
    pub fn new(link: &str, seed: u64, configs: [SessionConfig; 2]) -> Self {
        Self::with_options(&link.parse().expect("options of a link"), seed, configs)
    }

    /// The same, of options that have been read.
    ///
    /// # Panics
    /// If they name files.
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
            links_up: Vec::new(),
            stores: Default::default(),
            hosts: [(); 2].map(|()| Host {
                busy: None,
                waiting: VecDeque::new(),
            }),
        }
    }

    /// Both machines stand still for up to `most` now and then, up to `apart` after the last time; evenly drawn.
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

    /// A stream from side 0 with `bytes` written, ended behind them.
    ///
    /// # Panics
    /// If there are too many.
    pub fn upload(&mut self, class: Class, bytes: u64) -> StreamId {
        let stream = self.sessions[0].open(class, 0, b"").expect("few");
        self.sessions[0].written(stream, bytes);
        self.sessions[0].finish(stream);
        stream
    }

    /// A stream from side 0 without end, of which both ends keep so many bytes: the sender those that are not
    /// acknowledged, the receiver those that it takes ahead.
    ///
    /// # Panics
    /// If there are too many.
    pub fn feed(&mut self, class: Class, ring: u64) -> StreamId {
        (self.window, self.ring) = (ring, ring);
        let stream = self.sessions[0].open(class, 0, b"").expect("few");
        self.sessions[0].written(stream, ring);
        self.fed.insert(stream);
        stream
    }

    /// New bytes that have arrived at side 1, in order or not.
    pub fn arrived(&self) -> u64 {
        self.stores[1].arrived
    }

    /// Bytes of a stream of side 0 that side 1 can read in order.
    pub fn readable(&self, stream: StreamId) -> u64 {
        self.progress[1]
            .get(&stream)
            .map_or(0, |progress| progress.readable)
    }

    /// When side 1 had all of a stream.
    pub fn finished(&self, stream: StreamId) -> Option<Duration> {
        self.progress[1].get(&stream)?.finished
    }

    /// Lets time pass, until then or until something holds.
    ///
    /// # Panics
    /// If a session violates the protocol or a wrong byte arrives.
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

    /// From now on side 0 always has packets beside streams, so long.
    pub fn send_packets(&mut self, class: Class, len: usize) {
        self.stores[0].endless = Some(len);
        let queue = self.sessions[0].open_packets(class, 0);
        self.sessions[0].set_packets_ready(queue.expect("few"), true);
    }

    /// Packets beside streams that have come to side 1.
    pub fn messages(&self) -> u64 {
        self.stores[1].messages
    }

    /// When a side has something to do of its own accord.
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
            .expect("what the peer wrote");
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
                _ => {}
            }
        }
    }
}

/// Median, least and most.
pub fn spread(values: &mut [f64]) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (
        values[values.len() / 2],
        values[0],
        values[values.len() - 1],
    )
}
