//! Two sessions over a link of winkemu in virtual time, with bulk streams and messages, for measuring.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use tunnel::{
    class::Class,
    session::{Event, Outages, Rate, Session, SessionConfig},
    store::Store,
    wire::StreamId,
};
use winkemu_link::{Direction, Engine, LinkOptions};

use crate::wire::{HEADERS, OVERHEAD};

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
        memory: None,
        overhead_max: 1.0,
    }
}

/// Bytes that follow from their position, so that they need not be kept.
#[derive(Debug, Default)]
pub struct Positions {
    /// New bytes that have arrived, in order or not.
    pub arrived: u64,
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
            let own = self.sessions.each_mut().map(Session::deadline);
            let next = own.into_iter().chain([link]).flatten().min();
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

    fn send(&mut self) {
        for (side, direction) in [(0, Direction::AtoB), (1, Direction::BtoA)] {
            loop {
                let mut datagram = vec![0; OVERHEAD];
                let session = &mut self.sessions[side];
                let Some(written) =
                    session.poll_packet(self.now, &mut datagram, &self.stores[side])
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
            let number = u64::from_be_bytes(packet.bytes[..8].try_into().expect("eight"));
            let plain = &packet.bytes[OVERHEAD..];
            let len = packet.bytes.len() - HEADERS;
            let store = &mut self.stores[side];
            self.sessions[side]
                .handle_packet(self.now, number, plain, len, false, store)
                .expect("what the peer wrote");
            self.link.recycle(packet);
            self.events(side);
        }
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
