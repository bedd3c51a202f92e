//! Fake session: sends queued packets, and records received ones.

use std::{collections::VecDeque, time::Duration};

use crate::{
    ecn::Ecn,
    path::PathMemory,
    session::{Event, PacketError, SessionConfig, Written},
    store::Store,
    wire::CloseCode,
};

/// A packet that the fake session treats as invalid.
pub(crate) const NONSENSE: &[u8] = b"nonsense";

/// First bytes of a challenge and of an answer, which are as long as the real ones.
const CHALLENGE: &[u8] = &[7];
const ANSWER: &[u8] = &[8];

/// The packet that closes a fake session.
pub(crate) const FAREWELL: &[u8] = b"farewell";

/// The packet that closes a fake session because of a shutdown.
pub(crate) const SHUTDOWN: &[u8] = b"shutdown";

/// The packet that closes a fake session whose flows continue.
pub(crate) const ELSEWHERE: &[u8] = b"elsewhere";

#[derive(Debug)]
pub struct Session {
    trace: trace::Trace,
    pub config: SessionConfig,
    pub outbox: VecDeque<Vec<u8>>,
    pub inbox: Vec<(u64, Vec<u8>)>,
    pub events: VecDeque<Event>,
    /// Beacon interval.
    pub beacon: Duration,
    /// Minimum silence limit.
    pub limit_min: Duration,
    pub expected_since: Duration,
    pub next: u64,
    /// Carrier state last set by the endpoint.
    pub reliable: bool,
    /// Longest packet that may be sent.
    pub room: usize,
    /// Challenges and answers to send.
    path_frames: VecDeque<Vec<u8>>,
    answer: Option<u64>,
    /// Number of challenges to the peer.
    pub challenges: u64,
    /// Time of the last packet; `None` once silence has been reported.
    heard: Option<Duration>,
    deadline: Duration,
}

/// Silence limit.
const SILENCE: Duration = Duration::from_secs(1);

impl Session {
    pub fn trace(&mut self) -> &mut trace::Trace {
        &mut self.trace
    }

    pub fn new(config: SessionConfig, now: Duration) -> Self {
        Self {
            config,
            outbox: VecDeque::new(),
            inbox: Vec::new(),
            events: VecDeque::new(),
            beacon: Duration::from_millis(500),
            limit_min: Duration::ZERO,
            expected_since: Duration::ZERO,
            next: 0,
            reliable: false,
            room: usize::MAX,
            path_frames: VecDeque::new(),
            answer: None,
            challenges: 0,
            heard: Some(now),
            deadline: now,
            trace: trace::Trace::default(),
        }
    }

    pub fn handle_packet(
        &mut self,
        now: Duration,
        number: u64,
        packet: &[u8],
        _datagram: usize,
        _ecn: Ecn,
        _store: &mut impl Store,
    ) -> Result<(), PacketError> {
        self.heard = Some(now);
        if packet == NONSENSE {
            return Err(PacketError::Content);
        }
        let code = match packet {
            FAREWELL => Some(CloseCode::Protocol),
            SHUTDOWN => Some(CloseCode::Shutdown),
            ELSEWHERE => Some(CloseCode::Elsewhere),
            _ => None,
        };
        if let Some(code) = code {
            let reason = String::new();
            self.events.push_back(Event::PeerClosed { code, reason });
        }
        if let Some(token) = token_of(CHALLENGE, packet) {
            self.path_frames.push_back(path_frame(ANSWER, token));
        } else if let Some(token) = token_of(ANSWER, packet) {
            self.answer = Some(token);
        } else if !packet.is_empty() {
            self.inbox.push((number, packet.to_vec()));
        }
        Ok(())
    }

    /// Returns the duration of four beacons of 100 bytes that take a hundredth of the rate.
    pub fn silence_limit(&self) -> Duration {
        let rate = self.config.rate.stated().unwrap_or(u64::MAX) as f64;
        Duration::from_secs_f64(4.0 * 800.0 / (rate / 100.0)).max(self.limit_min)
    }

    pub fn expected_since(&self) -> Duration {
        self.expected_since
    }

    pub fn set_reliable(&mut self, reliable: bool) {
        self.reliable = reliable;
    }

    pub fn memory(&self, at: Duration) -> PathMemory {
        PathMemory {
            at,
            ..PathMemory::default()
        }
    }

    pub fn close(&mut self, code: CloseCode, reason: &str) {
        assert!(!reason.is_empty());
        let farewell = match code {
            CloseCode::Shutdown => SHUTDOWN,
            CloseCode::Elsewhere => ELSEWHERE,
            _ => FAREWELL,
        };
        self.outbox.push_front(farewell.into());
    }

    pub fn poll_packet(
        &mut self,
        now: Duration,
        out: &mut Vec<u8>,
        _store: &mut impl Store,
    ) -> Option<Written> {
        match self.next_packet() {
            Some(packet) => out.extend_from_slice(&packet),
            None if now < self.report_deadline() => return None,
            None => {}
        }
        self.deadline = now + self.beacon;
        let number = self.next;
        self.next += 1;
        Some(Written {
            number,
            ecn: Ecn::Ect0,
        })
    }

    fn next_packet(&mut self) -> Option<Vec<u8>> {
        let mut queues = [&mut self.path_frames, &mut self.outbox].into_iter();
        let fits = |packet: &Vec<u8>| packet.len() <= self.room;
        let queue = queues.find(|queue| queue.front().is_some_and(fits))?;
        queue.pop_front()
    }

    /// Sends an empty packet at once, as if it asked. The peer's beacons are an answer.
    pub fn ask(&mut self) {
        self.deadline = Duration::ZERO;
    }

    pub fn challenge_path(&mut self, token: Option<u64>) {
        let Some(token) = token else {
            return;
        };
        self.challenges += 1;
        self.path_frames.push_back(path_frame(CHALLENGE, token));
    }

    pub fn take_path_answer(&mut self) -> Option<u64> {
        self.answer.take()
    }

    pub fn set_room(&mut self, room: usize) {
        self.room = room;
    }

    pub fn smoothed_rtt(&self) -> Duration {
        self.config.rtt
    }

    pub fn wait(&mut self, now: Duration) -> Option<Duration> {
        if self.heard.is_some_and(|heard| heard + SILENCE <= now) {
            self.heard = None;
            self.events.push_back(Event::LinkDown);
        }
        self.silence_deadline()
    }

    pub fn silence_deadline(&self) -> Option<Duration> {
        self.heard.map(|heard| heard + SILENCE)
    }

    pub fn may_wait(&self, _now: Duration) -> Duration {
        Duration::from_millis(1)
    }

    pub fn report_deadline(&self) -> Duration {
        self.deadline
    }

    pub fn deadline_but_report(&self) -> Option<Duration> {
        let firsts = [self.path_frames.front(), self.outbox.front()];
        let mut firsts = firsts.into_iter().flatten();
        let fits = firsts.any(|packet| packet.len() <= self.room);
        fits.then_some(Duration::ZERO)
    }

    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

fn path_frame(kind: &[u8], token: u64) -> Vec<u8> {
    [kind, &token.to_be_bytes()].concat()
}

fn token_of(kind: &[u8], packet: &[u8]) -> Option<u64> {
    let token = packet.strip_prefix(kind)?;
    Some(u64::from_be_bytes(token.try_into().ok()?))
}
