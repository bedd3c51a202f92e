//! Two sessions, joined by a pipe with a delay and scripted loss.

mod carrier;
mod hostile;
mod messages;
mod skips;
mod streams;
mod traces;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::Duration,
};

use super::{Event, Outages, PacketQueue, Rate, Session, SessionConfig, SkipConfig};
use crate::{
    ecn::Ecn,
    store::{NextPacket, Store},
    wire::StreamId,
};

pub const DELAY: Duration = Duration::from_millis(50);

pub fn config(initiator: bool) -> SessionConfig {
    SessionConfig {
        initiator,
        rate: Rate::Stated(10_000_000),
        return_rate: None,
        rtt: 2 * DELAY,
        packet_start: 1400,
        packet_max: 1400,
        overhead: 53,
        outages: Outages::AtOnce,
        stream_credit: 100_000,
        session_credit: u64::MAX >> 2,
        kept_max: 64 << 20,
        streams_max: 10,
        packets: true,
        unreached: Default::default(),
        peer_packets: true,
        peer_rests: false,
        memory: None,
        overhead_max: 1.0,
        skips: SkipConfig::NONE,
    }
}

/// A datagram: its channel, mark, and bytes.
pub type Message = (u8, Ecn, Vec<u8>);

/// Bytes of streams in plain vectors, and datagrams.
#[derive(Debug, Default)]
pub struct Bytes {
    pub written: HashMap<StreamId, Vec<u8>>,
    pub placed: HashMap<StreamId, Vec<u8>>,
    pub queues: BTreeMap<PacketQueue, VecDeque<Message>>,
    /// Queues that always have a datagram of this length.
    pub endless: BTreeMap<PacketQueue, usize>,
    /// Number of calls for datagrams.
    pub asked: u64,
    /// Received datagrams, with the marks of their UDP datagrams.
    pub came: Vec<Message>,
}

impl Store for Bytes {
    fn read(&self, stream: StreamId, from: u64, into: &mut [u8]) {
        let from = from as usize;
        into.copy_from_slice(&self.written[&stream][from..from + into.len()]);
    }

    fn place(&mut self, stream: StreamId, from: u64, bytes: &[u8]) {
        let all = self.placed.entry(stream).or_default();
        let end = from as usize + bytes.len();
        all.resize(all.len().max(end), 0);
        all[from as usize..end].copy_from_slice(bytes);
    }

    fn next_packet(
        &mut self,
        queue: PacketQueue,
        _now: Duration,
        room: usize,
        out: &mut Vec<u8>,
    ) -> Option<NextPacket> {
        self.asked += 1;
        if let Some(len) = self.endless.get(&queue) {
            out.push(1);
            out.resize(out.len() + len.min(&room), 7);
            let ecn = Ecn::Ect0;
            return Some(NextPacket { more: true, ecn });
        }
        let queue = self.queues.get_mut(&queue)?;
        let (channel, ecn, message) = queue.pop_front()?;
        out.push(channel);
        out.extend_from_slice(&message);
        let more = !queue.is_empty();
        Some(NextPacket { more, ecn })
    }

    fn packet(&mut self, _now: Duration, channel: u8, outer: Ecn, message: &[u8]) {
        self.came.push((channel, outer, message.to_vec()));
    }
}

#[derive(Debug)]
pub struct Side {
    pub session: Session,
    pub bytes: Bytes,
    pub events: Vec<Event>,
}

impl Side {
    fn new(config: SessionConfig) -> Self {
        Self {
            session: Session::new(config, Duration::ZERO),
            bytes: Bytes::default(),
            events: Vec::new(),
        }
    }

    pub fn write(&mut self, stream: StreamId, bytes: &[u8]) {
        let all = self.bytes.written.entry(stream).or_default();
        all.extend_from_slice(bytes);
        self.session.written(stream, all.len() as u64);
    }

    /// Queues a datagram.
    pub fn send(&mut self, queue: PacketQueue, channel: u8, ecn: Ecn, message: &[u8]) {
        let queued = self.bytes.queues.entry(queue).or_default();
        queued.push_back((channel, ecn, message.to_vec()));
        self.session.set_packets_ready(queue, true);
    }

    pub fn readable(&self, stream: StreamId) -> u64 {
        let readable = self.events.iter().rev().find_map(|event| match event {
            Event::Readable { stream: s, until } if *s == stream => Some(*until),
            _ => None,
        });
        readable.unwrap_or(0)
    }

    pub fn has(&self, event: &Event) -> bool {
        self.events.contains(event)
    }
}

/// A packet in flight: receiving side, number, mark and bytes.
type Flying = (usize, u64, Ecn, Vec<u8>);

/// Returns true if packet `n` of all, sent by this side with these bytes, is lost.
type Loses = dyn FnMut(u64, usize, &[u8]) -> bool;

/// Both sides, and the link between them.
pub struct Pair {
    pub sides: [Side; 2],
    pub now: Duration,
    flying: BTreeMap<(Duration, u64), Flying>,
    sent: u64,
    pub loses: Box<Loses>,
    /// Until then nothing arrives; then everything sent meanwhile does.
    pub stalled: Duration,
    /// True if the network marks congestion where it may.
    pub marks: bool,
}

impl Pair {
    pub fn new() -> Self {
        Self::with(config)
    }

    pub fn with(config: impl Fn(bool) -> SessionConfig) -> Self {
        Self {
            sides: [true, false].map(|initiator| Side::new(config(initiator))),
            now: Duration::ZERO,
            flying: BTreeMap::new(),
            sent: 0,
            loses: Box::new(|_, _, _| false),
            stalled: Duration::ZERO,
            marks: false,
        }
    }

    /// Runs both sides for this time.
    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.send();
            let due = self.flying.keys().next().map(|key| key.0);
            let deadlines = self.sides.each_mut().map(|side| side.session.deadline());
            let next = deadlines.into_iter().chain([due]).flatten().min();
            let next = next.unwrap_or(end).max(self.now);
            if next >= end {
                self.now = end;
                return;
            }
            // A deadline that has passed must have an effect: time stops only for packets.
            self.now = if next == self.now && due != Some(next) {
                next + Duration::from_micros(1)
            } else {
                next
            };
            self.deliver();
        }
    }

    fn send(&mut self) {
        for (i, side) in self.sides.iter_mut().enumerate() {
            loop {
                let mut packet = Vec::new();
                let written = side
                    .session
                    .poll_packet(self.now, &mut packet, &mut side.bytes);
                let Some(written) = written else { break };
                self.sent += 1;
                if !(self.loses)(self.sent, i, &packet) {
                    let key = ((self.now + DELAY).max(self.stalled), self.sent);
                    self.flying
                        .insert(key, (1 - i, written.number, written.ecn, packet));
                }
            }
            side.events
                .extend(std::iter::from_fn(|| side.session.poll_event()));
        }
    }

    fn deliver(&mut self) {
        while let Some(entry) = self.flying.first_entry() {
            if entry.key().0 > self.now {
                return;
            }
            let (to, number, mut ecn, packet) = entry.remove();
            if self.marks && ecn != Ecn::NotEct {
                ecn = Ecn::Ce;
            }
            let side = &mut self.sides[to];
            let len = packet.len() + 25;
            side.session
                .handle_packet(self.now, number, &packet, len, ecn, &mut side.bytes)
                .expect("a valid packet of the other side");
            side.events
                .extend(std::iter::from_fn(|| side.session.poll_event()));
        }
    }
}

/// The first packets leave unpaced where no rate is known: that is not shown as a rate.
#[test]
fn a_session_that_has_sent_nothing_has_a_rate_that_can_be_shown() {
    let config = SessionConfig {
        rate: Rate::Auto,
        ..config(true)
    };
    let path = Session::new(config, Duration::ZERO).path();
    assert_eq!(path.rate, path.link_rate);
    assert!(path.rate < 1_000_000_000, "{}", path.rate);
}
