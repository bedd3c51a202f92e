//! Flows of pepd over an emulated link in virtual time: alone, together or beside TCP flows.

mod cubic;
mod flow;
mod receiver;

use std::{collections::VecDeque, time::Duration};

use cubic::Cubic;
use flow::Flow;
use tunnel::session::Rate;
use winkemu_link::{Direction, Engine, LinkConfig, LinkOptions, Nanos, RateModel, trace::Trace};

/// Bytes of a packet on the link.
pub const PACKET: usize = 1468;

/// Configuration of the emulation.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Link rates: bits per second, and start in round trips.
    pub rates: Vec<(f64, f64)>,
    /// Round trip time without queues.
    pub rtt: Duration,
    /// Buffer, as a multiple of the initial rate times the round trip time.
    pub buffer: f64,
    /// Further options of the forward path, e.g. `loss=2%`.
    pub options: String,
    /// Beginnings and ends of CUBIC flows, in round trips.
    pub cubic: Vec<(f64, f64)>,
    /// Beginnings of pepd's flows, in round trips.
    pub start: Vec<f64>,
    /// Rate setting of pepd's flows.
    pub rate: Rate,
    /// Duration in round trips.
    pub rounds: f64,
}

/// Results of an emulation.
pub struct Run {
    setup: Setup,
    /// Arrival times per flow: pepd's flows, then CUBIC's.
    arrivals: Vec<Vec<Nanos>>,
    /// Times at which packets were dropped at the queue.
    overflows: Vec<Nanos>,
    /// Times at which packets were offered.
    offers: Vec<Nanos>,
    engine: Engine,
    /// Changes of the rate of pepd's first flow: time, and new rate with its reason.
    pub log: Vec<(f64, String)>,
}

impl Run {
    /// Runs the emulation.
    pub fn new(setup: &Setup, seed: u64) -> Self {
        Emulation::new(setup, seed).run()
    }

    fn at(&self, round: f64) -> Nanos {
        nanos(self.setup.rtt.mul_f64(round))
    }

    fn delivered(&self, flow: usize, from: Nanos, to: Nanos) -> f64 {
        (within(&self.arrivals[flow], from, to) * PACKET * 8) as f64
    }

    /// Returns the bits per second of a flow (pepd's first, then CUBIC's) at the receiver, between
    /// two round trips.
    pub fn rate(&self, flow: usize, from: f64, to: f64) -> f64 {
        let (from, to) = (self.at(from), self.at(to));
        self.delivered(flow, from, to) * 1e9 / (to - from) as f64
    }

    /// Returns the round trips from `from` until the first flow's rate reaches `rate`, over the
    /// last round trip (10 packets or more).
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

    /// Returns median and 95th percentile of the queueing delay in round trips, between two round
    /// trips within which the rate must not change.
    pub fn queue(&self, from: f64, to: f64) -> (f64, f64) {
        let history = self.engine.queue_history(Direction::AtoB);
        let rate = self.setup.rate_at(from);
        let share = 8.0 / rate / self.setup.rtt.as_secs_f64();
        let bytes = history.over(self.at(from), self.at(to));
        bytes.map_or((0.0, 0.0), |bytes| (bytes.p50 * share, bytes.p95 * share))
    }

    /// Returns the share of packets offered between two round trips that found the queue full.
    pub fn overflow(&self, from: f64, to: f64) -> f64 {
        let (from, to) = (self.at(from), self.at(to));
        let offered = within(&self.offers, from, to);
        within(&self.overflows, from, to) as f64 / offered.max(1) as f64
    }
}

/// Returns the number of these rising times within a period.
fn within(times: &[Nanos], from: Nanos, to: Nanos) -> usize {
    times.partition_point(|at| *at < to) - times.partition_point(|at| *at < from)
}

impl Setup {
    /// Returns the rate at that round trip.
    pub fn rate_at(&self, round: f64) -> f64 {
        let step = self.rates.iter().rev().find(|step| step.0 <= round);
        step.map_or(self.rates[0].1, |step| step.1)
    }

    fn config(&self) -> LinkConfig {
        let one_way = self.rtt.as_nanos() / 2;
        let bytes =
            (self.rates[0].1 * self.rtt.as_secs_f64() * self.buffer / 8.0).max(15_000.0) as u64;
        let text = format!(
            "delay={one_way}ns,queue={bytes}B,rate=10mbit{}",
            self.options
        );
        let options: LinkOptions = text.parse().expect("the options are right");
        let mut config = options
            .resolve_without_files()
            .expect("the options name no files");
        let step = |step: &(f64, f64)| (nanos(self.rtt.mul_f64(step.0)), step.1 as u64);
        let steps: Vec<_> = self.rates.iter().map(step).collect();
        config.ab.rate =
            RateModel::Trace(Trace::new(&steps, None).expect("the steps are in order"));
        config
    }
}

/// Returns the nanoseconds of a duration.
pub fn nanos(duration: Duration) -> Nanos {
    duration.as_nanos() as Nanos
}

struct Emulation {
    setup: Setup,
    now: Nanos,
    engine: Engine,
    flows: Vec<Flow>,
    cubics: Vec<Cubic>,
    /// CUBIC's acknowledgements in flight: time, flow, packet.
    acks: VecDeque<(Nanos, usize, u64)>,
    draws: u64,
    arrivals: Vec<Vec<Nanos>>,
    overflows: Vec<Nanos>,
    offers: Vec<Nanos>,
    buffer: [u8; PACKET],
}

impl Emulation {
    fn new(setup: &Setup, seed: u64) -> Self {
        let at = |round: f64| nanos(setup.rtt.mul_f64(round));
        // Otherwise all would begin in step for every seed.
        let apart = |i: usize| (seed + 3 * i as u64) * 7_000_003 % nanos(setup.rtt);
        let cubics = setup.cubic.iter().enumerate();
        let cubics = cubics.map(|(i, (from, to))| Cubic::new(at(*from) + apart(i), at(*to)));
        let flows = setup.start.iter().enumerate().map(|(i, from)| {
            Flow::new(
                setup.rate,
                setup.rtt,
                at(*from) + apart(i) * u64::from(i > 0),
            )
        });
        let (cubics, flows): (Vec<_>, Vec<_>) = (cubics.collect(), flows.collect());
        Self {
            setup: setup.clone(),
            now: 0,
            engine: Engine::new(&setup.config(), seed),
            arrivals: vec![Vec::new(); cubics.len() + flows.len()],
            flows,
            cubics,
            acks: VecDeque::new(),
            draws: seed,
            overflows: Vec::new(),
            offers: Vec::new(),
            buffer: [0; PACKET],
        }
    }

    fn run(mut self) -> Run {
        let end = nanos(self.setup.rtt.mul_f64(self.setup.rounds));
        while self.now < end {
            self.deliver();
            self.send();
            let engine = self.engine.poll_timeout();
            let flows = self.flows.iter().filter_map(Flow::deadline);
            let cubics = self.cubics.iter().filter_map(Cubic::deadline);
            let ack = self.acks.front().map(|ack| ack.0);
            let next = flows.chain(cubics).chain(engine).chain(ack).min();
            self.now = next.unwrap_or(end).max(self.now + 1).min(end);
        }
        Run {
            setup: self.setup,
            arrivals: self.arrivals,
            overflows: self.overflows,
            offers: self.offers,
            engine: self.engine,
            log: std::mem::take(&mut self.flows[0].log),
        }
    }

    fn deliver(&mut self) {
        let back = nanos(self.setup.rtt) / 2;
        while let Some((_, packet)) = self.engine.poll_deliver(self.now) {
            let flow = usize::from(packet.bytes[0]);
            let number = u64::from_be_bytes(packet.bytes[1..9].try_into().expect("8 bytes"));
            self.arrivals[flow].push(packet.due);
            if let Some(ours) = self.flows.get_mut(flow) {
                ours.on_arrival(packet.due, number, PACKET as u64);
            } else {
                let whose = flow - self.flows.len();
                let at = packet.due + back + self.busy();
                let last = self.acks.back().map_or(0, |ack| ack.0);
                self.acks.push_back((at.max(last), whose, number));
            }
            self.engine.recycle(packet);
        }
        while self.acks.front().is_some_and(|ack| ack.0 <= self.now) {
            let (_, whose, number) = self.acks.pop_front().expect("one is in flight");
            self.cubics[whose].on_ack(self.now, number);
        }
    }

    /// Returns the random response time of a host: up to a packet's time on the link. Otherwise the
    /// same one of two flows would find the last place in a full queue each time (Floyd and
    /// Jacobson 1991).
    fn busy(&mut self) -> Nanos {
        self.draws = self
            .draws
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(1);
        let packet = (PACKET as f64 * 8e9 / self.setup.rates[0].1) as u64;
        (self.draws >> 33) % packet.max(1)
    }

    fn send(&mut self) {
        for flow in 0..self.flows.len() {
            while let Some(number) = self.flows[flow].poll(self.now) {
                self.offer(flow, number);
            }
        }
        for cubic in 0..self.cubics.len() {
            while let Some(number) = self.cubics[cubic].poll(self.now) {
                self.offer(self.flows.len() + cubic, number);
            }
        }
    }

    fn offer(&mut self, flow: usize, number: u64) {
        self.buffer[0] = flow as u8;
        self.buffer[1..9].copy_from_slice(&number.to_be_bytes());
        let before = self.dropped();
        self.engine
            .handle_packet(Direction::AtoB, &self.buffer, self.now);
        self.offers.push(self.now);
        if self.dropped() > before {
            self.overflows.push(self.now);
        }
    }

    fn dropped(&self) -> u64 {
        self.engine.stats(Direction::AtoB).dropped.queue_full
    }
}
