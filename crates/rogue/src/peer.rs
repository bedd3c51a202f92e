//! A peer that takes any steps, after a handshake by tunnel's own code.

use std::{
    collections::{BTreeSet, VecDeque},
    net::SocketAddr,
    time::Duration,
};

use fec::wire::Header;
use tunnel::{
    crypto::Key,
    ecn::Ecn,
    endpoint::{
        Carriers, Counters, Endpoint, EndpointConfig, Limits, PeerConfig, PeerId, Remote, Stores,
    },
    session::SessionConfig,
    store::Store,
    wire::{CloseCode, Frame, Frames, Gap, Highest, Report, StreamId, expand},
};

use crate::Step;

/// Keys and addresses of a rogue peer.
#[derive(Clone, Debug)]
pub struct Config {
    /// Private key of the rogue peer.
    pub private_key: Key,
    /// Public key of the other end.
    pub public_key: Key,
    /// Pre-shared key; zeros for none.
    pub psk: Key,
    /// Address at which it calls the other end; without one it waits for a call.
    pub other: Option<SocketAddr>,
    /// Carrier of the calls.
    pub carriers: Carriers,
    /// Terms that it offers.
    pub session: SessionConfig,
}

/// Terms that allow the other end as much as possible.
pub fn generous() -> SessionConfig {
    SessionConfig {
        streams_max: 1 << 20,
        stream_credit: 1 << 40,
        session_credit: 1 << 40,
        packets: true,
        ..SessionConfig::default()
    }
}

struct NoBytes;

impl Store for NoBytes {
    fn read(&self, _: StreamId, _: u64, into: &mut [u8]) {
        into.fill(0);
    }

    fn place(&mut self, _: StreamId, _: u64, _: &[u8]) {}
}

impl Stores for NoBytes {
    type Store = Self;

    fn store_of(&mut self, _: PeerId) -> &mut Self {
        self
    }
}

/// Packets and segments of a session that have arrived.
#[derive(Debug, Default)]
struct Arrived {
    highest: Option<(u64, Duration)>,
    packets: u64,
    bytes: u64,
    /// Lowest segment that is missing, and those above it that are here.
    below: u64,
    above: BTreeSet<u64>,
    /// Numbers missing below later ones, and the number of reports that have named each.
    gaps: Vec<(Gap, u8)>,
    /// Reports that wait for their time, and when they were made.
    late: VecDeque<(Duration, Report)>,
    closed: Option<(CloseCode, String)>,
}

/// A peer with a valid key that sends what it likes.
#[derive(Debug)]
pub struct Rogue {
    config: Config,
    /// Number of the session, which seeds the endpoint.
    sessions: u64,
    endpoint: Endpoint,
    peer: PeerId,
    /// Address of the other end.
    remote: Option<Remote>,
    began: Duration,
    next: u64,
    segment: u64,
    arrived: Arrived,
    last: Vec<u8>,
}

impl Rogue {
    /// Creates a peer, whose randomness comes from `seed`.
    ///
    /// # Panics
    /// When the key of the other end is its own.
    pub fn new(config: Config, seed: u64) -> Self {
        let (endpoint, peer) = endpoint(&config, seed);
        Self {
            remote: None,
            sessions: seed,
            endpoint,
            peer,
            began: Duration::ZERO,
            next: 0,
            segment: 0,
            arrived: Arrived::default(),
            last: Vec::new(),
            config,
        }
    }

    /// Forgets the session without a word to the other end.
    pub fn renew(&mut self) {
        *self = Self::new(self.config.clone(), self.sessions.wrapping_add(1));
    }

    /// Forgets the session, and allows the other end so many bytes of each stream from then on.
    pub fn renew_with(&mut self, stream_credit: u64) {
        self.config.session.stream_credit = stream_credit;
        self.renew();
    }

    /// Returns true if there is a session that the other end has not closed.
    pub fn is_up(&self) -> bool {
        let state = self.endpoint.peer_state(self.peer);
        state.is_some_and(|state| state.up) && self.arrived.closed.is_none()
    }

    /// Returns code and reason with which the other end has closed the session.
    pub fn closed(&self) -> Option<&(CloseCode, String)> {
        self.arrived.closed.as_ref()
    }

    /// Returns packets of the other end that have arrived in this session.
    pub fn arrived(&self) -> u64 {
        self.arrived.packets
    }

    /// Returns the address of the other end, once there is a session.
    pub fn remote(&self) -> Option<Remote> {
        self.remote
    }

    /// Handles a datagram of the other end, and opens it in place.
    pub fn handle(&mut self, now: Duration, from: Remote, datagram: &mut [u8]) {
        // In a session that the other end began, streams would have other numbers.
        if self.config.other.is_some() && datagram.first() == Some(&INITIATION) {
            return;
        }
        let length = datagram.len();
        let expected = self.arrived.highest.map_or(0, |(number, _)| number + 1);
        let was_up = self.is_up();
        if was_up
            && let Some((number, packet)) = self.endpoint.open_any(self.peer, expected, datagram)
        {
            let packet = packet.to_vec();
            self.note(now, number, length, &packet);
            return;
        }
        self.endpoint
            .handle_datagram(now, from, Ecn::NotEct, datagram, &mut NoBytes);
        if !was_up && self.is_up() {
            (self.began, self.remote) = (now, Some(from));
        }
    }

    /// Writes the next datagram of a handshake, if one is due; returns its destination.
    pub fn poll(&mut self, now: Duration, out: &mut Vec<u8>) -> Option<Remote> {
        // The honest session that the handshake began stays silent.
        if self.arrived.closed.is_some() || self.next > 0 {
            return None;
        }
        let transmit = self.endpoint.poll_transmit(now, out, &mut NoBytes)?;
        if self.is_up() && out.first() == Some(&DATA) {
            out.clear();
            return None;
        }
        Some(transmit.to)
    }

    fn note(&mut self, now: Duration, number: u64, length: usize, packet: &[u8]) {
        let arrived = &mut self.arrived;
        arrived.packets += 1;
        arrived.bytes += length as u64;
        if arrived.highest.is_none_or(|(highest, _)| number > highest) {
            arrived.note_gap(number, now);
            arrived.highest = Some((number, now));
        }
        for frame in Frames::new(packet).map_while(Result::ok) {
            self.note_frame(&frame);
        }
    }

    fn note_frame(&mut self, frame: &Frame<'_>) {
        match frame {
            Frame::Close { code, reason } => {
                self.arrived.closed = Some((*code, (*reason).to_owned()));
            }
            Frame::Segment { seq, .. } => self.arrived.take(*seq),
            Frame::Coded { protected, .. } => {
                if let Ok((Header::WindowData { .. } | Header::BlockData { .. }, content)) =
                    Header::parse(protected)
                    && let Some(Ok(Frame::Segment { seq, .. })) = Frames::new(content).next()
                {
                    self.arrived.take(seq);
                }
            }
            _ => {}
        }
    }

    /// Takes a step and returns the datagram that it sends, if it sends one. Needs a session,
    /// except for [`Step::Renew`] and datagrams.
    pub fn step(&mut self, now: Duration, step: &Step) -> Option<Vec<u8>> {
        let datagram = match step {
            Step::Packet(packet) => self.packet(packet)?,
            Step::PacketAt(away, packet) => {
                let number = self.next.saturating_add_signed(*away);
                self.sealed(number, packet)?
            }
            Step::Segment(parts) => {
                let packet = segment(self.segment, parts);
                self.segment += 1;
                self.packet(&packet)?
            }
            Step::SegmentAt(away, parts) => {
                let number = self.segment.wrapping_add_signed(*away);
                self.packet(&segment(number, parts))?
            }
            Step::Again => self.last.clone(),
            Step::Datagram(bytes) => return Some(bytes.clone()),
            Step::Terms(terms) => {
                let mut out = Vec::new();
                let written = self.endpoint.initiate_any(self.peer, terms, &mut out);
                return written.then_some(out);
            }
            Step::Report => {
                let report = self.arrived.report(now);
                self.packet(&emitted(report))?
            }
            Step::Optimistic(rate) => {
                let report = self.optimistic(now, *rate);
                self.packet(&emitted(report))?
            }
            Step::Smooth(gaps) => {
                let report = self.smooth(now, *gaps);
                self.packet(&emitted(report))?
            }
            Step::Late => {
                let report = self.late(now)?;
                self.packet(&emitted(report))?
            }
            Step::Renew => {
                self.renew();
                return None;
            }
        };
        self.last.clone_from(&datagram);
        Some(datagram)
    }

    /// A report of all that the other end can have sent since the session began.
    fn optimistic(&mut self, now: Duration, rate: u32) -> Report {
        let sent = (now.saturating_sub(self.began).as_secs_f64() * f64::from(rate)) as u64;
        let mut report = self.arrived.report(now);
        if let Some(highest) = &mut report.highest {
            highest.number += sent;
        }
        report.packets += sent;
        report.below += sent;
        report
    }

    /// A report that all has arrived that the other end has sent up to the highest packet, except
    /// every other one of the first packets.
    fn smooth(&mut self, now: Duration, gaps: u64) -> Report {
        let mut report = self.arrived.report(now);
        let last = report.ranges.last().map(|range| range.end);
        report.below = last.unwrap_or(report.below);
        report.ranges.clear();
        let gap = |before| Gap {
            before,
            missing: 1,
            before_us: 0,
            after_us: 0,
        };
        report.gaps = (0..gaps).map(|at| gap(2 * at)).collect();
        report.counts = [0; 3];
        if let Some(highest) = &mut report.highest {
            highest.arrived_us /= 2;
            // Less than may have been left out.
            let claimed = highest.number - highest.number / 2000;
            let more = claimed.saturating_sub(report.packets + 2);
            report.bytes += report.bytes / report.packets.max(1) * more;
            report.packets += more;
        }
        report
    }

    /// A report that was true earlier, if one is due. Each is sent, as each gap must be named.
    fn late(&mut self, now: Duration) -> Option<Report> {
        let report = self.arrived.report(now);
        let late = &mut self.arrived.late;
        late.push_back((now, report));
        let age = now.saturating_sub(self.began);
        late.front().filter(|(made, _)| *made + age / 2 <= now)?;
        late.pop_front().map(|(_, report)| report)
    }

    fn packet(&mut self, packet: &[u8]) -> Option<Vec<u8>> {
        let datagram = self.sealed(self.next, packet)?;
        self.next += 1;
        Some(datagram)
    }

    fn sealed(&self, number: u64, packet: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let sealed = self.endpoint.seal_any(self.peer, number, packet, &mut out);
        sealed.then_some(out)
    }
}

/// Maximum number of gaps in a report.
const GAPS_MAX: usize = 16;

/// Types of datagrams.
const INITIATION: u8 = 1;
const DATA: u8 = 5;

fn endpoint(config: &Config, seed: u64) -> (Endpoint, PeerId) {
    let mut bytes = [0; 32];
    splitmix::SplitMix64::new(seed).fill(&mut bytes);
    let mut endpoint = Endpoint::new(&EndpointConfig {
        private_key: config.private_key,
        seed: bytes,
        limits: Limits::default(),
    });
    let peer = endpoint.add_peer(PeerConfig {
        public_key: config.public_key,
        psk: config.psk,
        addresses: config.other.into_iter().collect(),
        last: None,
        carriers: config.carriers,
        counters: Counters::default(),
        session: config.session.clone(),
    });
    (endpoint, peer.expect("another key than its own"))
}

fn micros(time: Duration) -> u64 {
    time.as_micros() as u64
}

fn segment(number: u64, parts: &[u8]) -> Vec<u8> {
    let mut packet = vec![2];
    packet.extend_from_slice(&(number as u32).to_be_bytes());
    packet.extend_from_slice(parts);
    packet
}

fn emitted(report: Report) -> Vec<u8> {
    let mut out = Vec::new();
    Frame::Report(report).emit(&mut out);
    out
}

impl Arrived {
    fn take(&mut self, seq: u32) {
        let number = expand(seq, self.below);
        if number >= self.below {
            self.above.insert(number);
        }
        while self.above.remove(&self.below) {
            self.below += 1;
        }
    }

    fn note_gap(&mut self, number: u64, now: Duration) {
        if let Some((before, at)) = self.highest.filter(|(highest, _)| number > highest + 1) {
            let gap = Gap {
                before,
                missing: number - before - 1,
                before_us: micros(at),
                after_us: micros(now),
            };
            self.gaps.push((gap, 0));
        }
    }

    fn report(&mut self, now: Duration) -> Report {
        let from = self.gaps.len().saturating_sub(GAPS_MAX);
        let mut gaps = Vec::new();
        for (gap, times) in &mut self.gaps[from..] {
            gaps.push(*gap);
            *times += 1;
        }
        self.gaps.retain(|(_, times)| *times < 2);
        Report {
            gaps,
            highest: self.highest.map(|(number, at)| Highest {
                number,
                arrived_us: micros(at),
                held_us: micros(now.saturating_sub(at)),
            }),
            packets: self.packets,
            bytes: self.bytes,
            below: self.below,
            counts: [self.packets, 0, 0],
            ..Report::default()
        }
    }
}
