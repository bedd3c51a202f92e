//! A measured flow over an emulated link in virtual time, alone or beside a TCP.

mod cubic;
mod flow;
mod receiver;

use std::{collections::VecDeque, time::Duration};

use cubic::Cubic;
use flow::Flow;
use winkemu_link::{Direction, Engine, LinkConfig, LinkOptions, Nanos, RateModel, trace::Trace};

/// Bytes of a packet on the link.
pub const PACKET: usize = 1468;

/// What is emulated.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Bits a second, from when on, in round trips.
    pub rates: Vec<(f64, f64)>,
    /// Without queues.
    pub rtt: Duration,
    /// Of the rate at the beginning times the round trip time.
    pub buffer: f64,
    /// Further options of the way there, as `loss=2%`.
    pub options: String,
    /// When a CUBIC flow begins and ends, in round trips.
    pub cubic: Option<(f64, f64)>,
    /// When ours begins.
    pub start: f64,
    /// How long all takes.
    pub rounds: f64,
}

/// What has happened.
pub struct Run {
    setup: Setup,
    arrivals: [Vec<Nanos>; 2],
    engine: Engine,
    /// When our rate changed, and to what; by what it is decided.
    pub log: Vec<(f64, String)>,
}

impl Run {
    /// Emulates it.
    pub fn new(setup: &Setup, seed: u64) -> Self {
        Emulation::new(setup, seed).run()
    }

    fn at(&self, round: f64) -> Nanos {
        nanos(self.setup.rtt.mul_f64(round))
    }

    fn delivered(&self, flow: usize, from: Nanos, to: Nanos) -> f64 {
        let arrivals = &self.arrivals[flow];
        let count =
            arrivals.partition_point(|at| *at < to) - arrivals.partition_point(|at| *at < from);
        (count * PACKET * 8) as f64
    }

    /// Bits a second of a flow (0 is ours, 1 CUBIC's) at the receiver, between two round trips.
    pub fn rate(&self, flow: usize, from: f64, to: f64) -> f64 {
        let (from, to) = (self.at(from), self.at(to));
        self.delivered(flow, from, to) * 1e9 / (to - from) as f64
    }

    /// The first moment after round trip `from`, in round trips since then, at which our flow's rate over the
    /// last round trip (at least 10 packets) is at least `rate`.
    pub fn reaches(&self, from: f64, rate: f64) -> f64 {
        let window = nanos(self.setup.rtt).max((PACKET as f64 * 8e10 / rate) as Nanos);
        let start = self.at(from);
        let reached = |at: &&Nanos| {
            **at >= start + window
                && self.delivered(0, **at - window, **at) * 1e9 / window as f64 >= rate
        };
        let at = self.arrivals[0].iter().find(reached);
        at.map_or(f64::INFINITY, |at| {
            (at - start) as f64 / nanos(self.setup.rtt) as f64
        })
    }

    /// The queue's delay in round trips: median and 95th percentile of the time between two round trips, within
    /// which the rate must not change.
    pub fn queue(&self, from: f64, to: f64) -> (f64, f64) {
        let history = self.engine.queue_history(Direction::AtoB);
        let rate = self.setup.rate_at(from);
        let share = 8.0 / rate / self.setup.rtt.as_secs_f64();
        let bytes = history.over(self.at(from), self.at(to));
        bytes.map_or((0.0, 0.0), |bytes| (bytes.p50 * share, bytes.p95 * share))
    }

    /// The share of our packets and CUBIC's together that found the queue full.
    pub fn overflow(&self) -> f64 {
        let stats = self.engine.stats(Direction::AtoB);
        stats.dropped.queue_full as f64 / stats.offered as f64
    }
}

impl Setup {
    /// The rate at that round trip.
    pub fn rate_at(&self, round: f64) -> f64 {
        let step = self.rates.iter().rev().find(|step| step.0 <= round);
        step.map_or(self.rates[0].1, |step| step.1)
    }

    fn config(&self) -> LinkConfig {
        let half = self.rtt.as_nanos() / 2;
        let bytes =
            (self.rates[0].1 * self.rtt.as_secs_f64() * self.buffer / 8.0).max(15_000.0) as u64;
        let text = format!("delay={half}ns,queue={bytes}B,rate=10mbit{}", self.options);
        let options: LinkOptions = text.parse().expect("the options are right");
        let mut config = options.resolve_without_files().expect("there are no files");
        let step = |step: &(f64, f64)| (nanos(self.rtt.mul_f64(step.0)), step.1 as u64);
        let steps: Vec<_> = self.rates.iter().map(step).collect();
        config.ab.rate =
            RateModel::Trace(Trace::new(&steps, None).expect("the steps are in order"));
        config
    }
}

/// Nanoseconds of a duration.
pub fn nanos(duration: Duration) -> Nanos {
    duration.as_nanos() as Nanos
}

struct Emulation {
    setup: Setup,
    now: Nanos,
    engine: Engine,
    flow: Flow,
    cubic: Cubic,
    /// CUBIC's acknowledgements on their way.
    acks: VecDeque<(Nanos, u64)>,
    arrivals: [Vec<Nanos>; 2],
    buffer: [u8; PACKET],
}

impl Emulation {
    fn new(setup: &Setup, seed: u64) -> Self {
        let at = |round: f64| nanos(setup.rtt.mul_f64(round));
        let (from, to) = setup
            .cubic
            .map_or((Nanos::MAX, 0), |(from, to)| (at(from), at(to)));
        Self {
            setup: setup.clone(),
            now: 0,
            engine: Engine::new(&setup.config(), seed),
            flow: Flow::new(setup.rtt, at(setup.start)),
            // Both would begin in step for every seed.
            cubic: Cubic::new(from.saturating_add(seed * 7_000_003 % nanos(setup.rtt)), to),
            acks: VecDeque::new(),
            arrivals: [Vec::new(), Vec::new()],
            buffer: [0; PACKET],
        }
    }

    fn run(mut self) -> Run {
        let end = nanos(self.setup.rtt.mul_f64(self.setup.rounds));
        while self.now < end {
            self.deliver();
            self.send();
            let next = [
                self.engine.poll_timeout(),
                self.flow.deadline(),
                self.cubic.deadline(),
                self.acks.front().map(|ack| ack.0),
            ];
            let next = next.into_iter().flatten().min().unwrap_or(end);
            self.now = next.max(self.now + 1).min(end);
        }
        Run {
            setup: self.setup,
            arrivals: self.arrivals,
            engine: self.engine,
            log: self.flow.log,
        }
    }

    fn deliver(&mut self) {
        let back = nanos(self.setup.rtt) / 2;
        while let Some((_, packet)) = self.engine.poll_deliver(self.now) {
            let flow = usize::from(packet.bytes[0]);
            let number = u64::from_be_bytes(packet.bytes[1..9].try_into().expect("8 bytes"));
            self.arrivals[flow].push(packet.due);
            if flow == 0 {
                self.flow.on_arrival(packet.due, number, PACKET as u64);
            } else {
                self.acks.push_back((packet.due + back, number));
            }
            self.engine.recycle(packet);
        }
        while self.acks.front().is_some_and(|ack| ack.0 <= self.now) {
            let (_, number) = self.acks.pop_front().expect("there is one");
            self.cubic.on_ack(self.now, number);
        }
    }

    fn send(&mut self) {
        while let Some(number) = self.flow.poll(self.now) {
            self.offer(0, number);
        }
        while let Some(number) = self.cubic.poll(self.now) {
            self.offer(1, number);
        }
    }

    fn offer(&mut self, flow: u8, number: u64) {
        self.buffer[0] = flow;
        self.buffer[1..9].copy_from_slice(&number.to_be_bytes());
        self.engine
            .handle_packet(Direction::AtoB, &self.buffer, self.now);
    }
}
