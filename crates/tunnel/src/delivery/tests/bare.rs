//! Two ends without streams: segments of one size, over an emulated link, in virtual time.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use winkemu_link::{Direction, Engine};

use super::setup::Setup;
use crate::{
    arrival::{Arrivals, Arrived, Asks, Timing},
    delivery::{Delivery, Outcome},
    outage::{Change, Expected, Silence, UNANSWERED_PACKETS},
    wire::Report,
};

/// 1400 bytes in a packet of 1468: the maximum is 0.954 of the rate.
pub(super) const PACKET: usize = 1468;
pub(super) const CEILING: f64 = 1400.0 / 1468.0;
const HEADER: usize = 68;

pub(super) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[derive(Clone, Debug)]
struct Content {
    number: u64,
    seq: Option<u64>,
    report: Option<Report>,
}

#[derive(Debug)]
pub(super) struct End {
    pub(super) delivery: Delivery<u64>,
    pub(super) arrivals: Arrivals,
    pub(super) silence: Silence,
    rate: u64,
    peer_rate: u64,
    next_send: Duration,
    total: u64,
    pushed: u64,
    seen: HashSet<u64>,
    /// Arrival time of each segment's first copy.
    pub(super) new_at: HashMap<u64, Duration>,
    pub(super) acked: HashSet<u64>,
    pub(super) duplicates: u64,
    pub(super) resent: u64,
    pub(super) repeated: u64,
    pub(super) sent_bytes: u64,
    pub(super) report_bytes: u64,
    pub(super) changes: Vec<(Duration, Change)>,
    pub(super) first_sent: Vec<Duration>,
}

#[derive(Debug)]
pub(super) struct Bare {
    pub(super) now: Duration,
    engine: Engine,
    pub(super) ends: [End; 2],
    contents: HashMap<u64, Content>,
    next_content: u64,
    buffer: Vec<u8>,
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap()
}

fn per_packet(rate: u64, bytes: usize) -> Duration {
    Duration::from_secs_f64(bytes as f64 * 8.0 / rate as f64)
}

impl End {
    fn new(setup: &Setup, side: usize) -> Self {
        let (rate, peer_rate) = (setup.rates[side], setup.rates[1 - side]);
        let timing = Timing {
            rtt: setup.rtt,
            rate: Some(rate),
        };
        let mut end = Self {
            delivery: Delivery::new(setup.rtt),
            arrivals: Arrivals::new(timing, Duration::ZERO),
            silence: Silence::new(
                setup.outages,
                &expected(setup.rtt, rate, peer_rate),
                Duration::ZERO,
            ),
            rate,
            peer_rate,
            next_send: Duration::ZERO,
            total: setup.segments[side],
            pushed: 0,
            seen: HashSet::new(),
            new_at: HashMap::new(),
            acked: HashSet::new(),
            duplicates: 0,
            resent: 0,
            repeated: 0,
            sent_bytes: 0,
            report_bytes: 0,
            changes: Vec::new(),
            first_sent: Vec::new(),
        };
        end.update();
        end
    }

    fn update(&mut self) {
        let rtt = self.delivery.smoothed_rtt();
        let rate = Some(self.rate);
        self.arrivals.set_timing(Timing { rtt, rate });
        self.silence
            .set_expected(&expected(rtt, self.rate, self.peer_rate));
    }

    fn patience(&self) -> Duration {
        self.delivery.smoothed_rtt() * 5 / 4
    }

    fn note(&mut self, now: Duration, change: Option<Change>) {
        if change == Some(Change::Up) {
            self.delivery.resume(now);
        }
        self.changes.extend(change.map(|change| (now, change)));
    }

    fn receive(&mut self, now: Duration, content: &Content) -> Option<Outcome> {
        if !self.seen.insert(content.number) {
            return None;
        }
        let arrived = Arrived {
            number: content.number,
            datagram: PACKET,
            marked: false,
            asks: content.seq.map_or(Asks::Nothing, |_| Asks::Soon),
        };
        self.arrivals.on_packet(now, &arrived, self.silence.limit());
        if let Some(seq) = content.seq {
            if self.arrivals.on_segment(seq) {
                assert!(self.new_at.insert(seq, now).is_none(), "{seq} is new twice");
            } else {
                assert!(self.new_at.contains_key(&seq), "{seq} is not new at once");
                self.duplicates += 1;
            }
        }
        let outcome = content.report.as_ref().map(|report| {
            let acked = &mut self.acked;
            let outcome = self.delivery.on_report(now, report, |content| {
                assert!(acked.insert(content), "{content} is acknowledged twice");
            });
            outcome.unwrap()
        });
        let change = self
            .silence
            .on_packet(now, outcome.is_some_and(|outcome| outcome.progress));
        self.note(now, change);
        self.update();
        outcome
    }

    fn time(&mut self, now: Duration) {
        let unanswered = self.delivery.unanswered_since(UNANSWERED_PACKETS);
        let patience = self.patience();
        let change = self.silence.on_time(now, unanswered, patience);
        self.note(now, change);
    }

    fn next(&mut self, now: Duration) -> Option<(Content, usize)> {
        self.time(now);
        if self.arrivals.wants_report(now) {
            return Some(self.send_report(now));
        }
        if now < self.next_send || self.silence.sends_from().is_none() {
            return None;
        }
        self.choose(now)
            .map(|seq| self.send(now, Some(seq), None, PACKET))
    }

    fn send_report(&mut self, now: Duration) -> (Content, usize) {
        let report = self.arrivals.report(now);
        let size = HEADER + 32 + 4 * report.ranges.len() + 8 * report.gaps.len();
        self.arrivals.on_sent(now, Some(size));
        self.report_bytes += size as u64;
        self.send(now, None, Some(report), size)
    }

    fn choose(&mut self, now: Duration) -> Option<u64> {
        if let Some((seq, _, _)) = self.delivery.next_resend() {
            self.resent += 1;
            return Some(seq);
        }
        if self.may_push() {
            self.pushed += 1;
            self.first_sent.push(now);
            return Some(self.delivery.push(self.pushed - 1, PACKET, 0));
        }
        if self.silence.may_repeat()
            && let Some((seq, _, _)) = self.delivery.repeat_oldest(now)
        {
            self.repeated += 1;
            return Some(seq);
        }
        None
    }

    fn may_push(&self) -> bool {
        let timing = Timing {
            rtt: self.delivery.smoothed_rtt(),
            rate: Some(self.peer_rate),
        };
        self.pushed < self.total
            && self
                .delivery
                .window_open(self.rate / 8, timing.spacing(), self.silence.is_blind())
    }

    fn send(
        &mut self,
        now: Duration,
        seq: Option<u64>,
        report: Option<Report>,
        size: usize,
    ) -> (Content, usize) {
        let number = self.delivery.on_sent(now, seq, size, false);
        self.arrivals.on_sent(now, None);
        self.sent_bytes += size as u64;
        let earliest = now.saturating_sub(ms(1));
        self.next_send = self.next_send.max(earliest) + per_packet(self.rate, size);
        let content = Content {
            number,
            seq,
            report,
        };
        (content, size)
    }

    fn deadline(&mut self) -> Duration {
        let unanswered = self.delivery.unanswered_since(UNANSWERED_PACKETS);
        let mut at = self.arrivals.deadline();
        at = at.min(
            self.silence
                .deadline(unanswered, self.patience())
                .unwrap_or(at),
        );
        if self.silence.sends_from().is_some() {
            if self.delivery.has_lost() || self.may_push() {
                at = at.min(self.next_send);
            } else if self.silence.may_repeat()
                && let Some(repeat) = self.delivery.repeat_at()
            {
                at = at.min(repeat.max(self.next_send));
            }
        }
        at
    }

    pub(super) fn done(&self) -> bool {
        self.acked.len() as u64 == self.total
    }
}

fn expected(rtt: Duration, rate: u64, peer_rate: u64) -> Expected {
    Expected {
        reports: Timing {
            rtt,
            rate: Some(peer_rate),
        },
        packet: per_packet(rate.min(peer_rate), PACKET),
        queue: Duration::ZERO,
    }
}

impl Bare {
    pub(super) fn new(setup: &Setup) -> Self {
        Self {
            now: Duration::ZERO,
            engine: Engine::new(&setup.link(), setup.seed),
            ends: [End::new(setup, 0), End::new(setup, 1)],
            contents: HashMap::new(),
            next_content: 0,
            buffer: Vec::new(),
        }
    }

    /// Runs until every segment is acknowledged.
    pub(super) fn run_to_the_end(&mut self, at_most: Duration) {
        while !self.ends.iter().all(End::done) {
            assert!(
                self.now < at_most,
                "{} and {} acknowledged",
                self.ends[0].acked.len(),
                self.ends[1].acked.len()
            );
            self.step(at_most);
        }
    }

    pub(super) fn run(&mut self, until: Duration) {
        while self.now < until {
            self.step(until);
        }
    }

    fn step(&mut self, until: Duration) {
        self.send();
        let next = self.ends.each_mut().map(End::deadline);
        let link = self.engine.poll_timeout().map(Duration::from_nanos);
        let next = link.into_iter().chain(next).min().unwrap();
        assert!(
            next < until + Duration::from_secs(100_000),
            "nothing happens"
        );
        // Clocks of hosts tick, too.
        self.now = next.max(self.now + Duration::from_nanos(1)).min(until);
        self.deliver();
    }

    fn send(&mut self) {
        for (side, direction) in Direction::BOTH.into_iter().enumerate() {
            while let Some((content, size)) = self.ends[side].next(self.now) {
                self.buffer.clear();
                self.buffer.extend(self.next_content.to_ne_bytes());
                self.buffer.resize(size, 0);
                self.contents.insert(self.next_content, content);
                self.next_content += 1;
                self.engine
                    .handle_packet(direction, &self.buffer, nanos(self.now));
            }
        }
    }

    fn deliver(&mut self) {
        while let Some((direction, packet)) = self.engine.poll_deliver(nanos(self.now)) {
            let id = u64::from_ne_bytes(packet.bytes[..8].try_into().unwrap());
            let to = 1 - direction as usize;
            self.ends[to].receive(self.now, &self.contents[&id]);
            self.engine.recycle(packet);
        }
    }

    /// Returns the packet bytes that came for the first time, as a share of what `rate` carries in
    /// that time.
    pub(super) fn goodput(&self, from: Duration, to: Duration) -> f64 {
        let came = self.ends[1]
            .new_at
            .values()
            .filter(|at| (from..to).contains(at));
        let bits = (came.count() * PACKET * 8) as f64 * CEILING;
        bits / (self.ends[0].rate as f64 * (to - from).as_secs_f64())
    }

    /// Returns the share of sent packets that were lost.
    pub(super) fn lost_share(&self) -> f64 {
        1.0 - self.ends[1].seen.len() as f64 / self.ends[0].delivery.next_number() as f64
    }

    /// Checks that each segment came once and was acknowledged once, and that nothing is in flight.
    pub(super) fn check_done(&self) {
        for (one, other) in [(0, 1), (1, 0)] {
            let (sender, receiver) = (&self.ends[one], &self.ends[other]);
            assert!(
                sender.done(),
                "{} of {} acknowledged",
                sender.acked.len(),
                sender.total
            );
            assert_eq!(receiver.new_at.len() as u64, sender.total);
            assert_eq!(sender.delivery.in_flight(), Default::default());
            assert!(sender.delivery.is_empty() && !sender.delivery.has_lost());
        }
    }
}
