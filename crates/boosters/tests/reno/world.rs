//! Path from the sender to the receiver in virtual time, as in scenarios/packet-causes.toml:
//!
//! ```text
//!   sender == wired ==> near (a chain) == radio, loses ==> receiver
//!          <==========                 <== radio, loses == (a chain) far
//! ```

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use boosters::{
    chain::Chain,
    packet::Packet,
    rule::{Path, Rule},
    settings::{self, Boosted, Settings},
    tcp,
};
use etherparse::PacketBuilder;
use splitmix::SplitMix64;

use crate::sender::{Ack, Receiver, Sender};

/// Bytes of a segment, with which an IP packet fits a datagram of 1500.
pub const MSS: u32 = 1397;
/// Bytes that a tunnel adds to a packet.
const TUNNEL: usize = 51;
const FIRST: u32 = 0xffff_0000;
/// Wired link, without the share of other traffic, and radio, in bit/s.
const WIRED: u64 = 1_500_000;
const RADIO: u64 = 1_000_000;
const RADIO_DELAY: Duration = Duration::from_millis(5);
const WIRED_QUEUE: usize = 50;
const LOOK: Duration = Duration::from_millis(20);

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub sack: bool,
    pub wired_delay: Duration,
    /// Transition probabilities from good to bad and back, per packet; all packets in the bad state
    /// are lost.
    pub gilbert: (f64, f64),
    pub seed: u64,
    pub seconds: u64,
}

/// Boosters of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boost {
    None,
    Filters,
    Snoop,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Bytes that arrived in order.
    pub bytes: u64,
    pub sender: String,
    pub counters: String,
}

struct Loss {
    draws: SplitMix64,
    bad: bool,
}

impl Loss {
    fn takes(&mut self, (to_bad, to_good): (f64, f64)) -> bool {
        let change = if self.bad { to_good } else { to_bad };
        self.bad ^= self.draws.chance(change);
        self.bad
    }
}

enum Event {
    /// The wired link has sent a segment, which is at the near end.
    WiredIdle,
    AtNear(u64),
    RadioIdle(usize),
    AtReceiver(Vec<u8>),
    AckAtNear(Vec<u8>),
    AckAtSender(Vec<u8>),
    Look,
}

struct World {
    plan: Plan,
    now: Duration,
    events: BTreeMap<(Duration, u64), Event>,
    count: u64,
    sender: Sender,
    receiver: Receiver,
    wired: VecDeque<u64>,
    wired_busy: bool,
    /// Near and far end.
    chains: [Chain; 2],
    radio_busy: [bool; 2],
    loss: [Loss; 2],
}

fn chain(boost: Boost, near: bool) -> Chain {
    fn on<T>(config: T) -> Option<Boosted<T>> {
        let rule = Rule::ALWAYS;
        Some(Boosted { rule, config })
    }
    let filters = boost == Boost::Filters;
    settings::chain(&Settings {
        queue: 250_000,
        deadline: Duration::from_secs(1),
        data_filter: (filters && near).then(|| on(())).flatten(),
        ack_filter: (filters && !near).then(|| on(Default::default())).flatten(),
        snoop: (boost == Boost::Snoop && near)
            .then(|| on(Default::default()))
            .flatten(),
        ..Settings::default()
    })
}

fn seq(number: u64) -> u32 {
    FIRST.wrapping_add((number as u32).wrapping_mul(MSS))
}

/// Returns the extended number near this one.
fn number(seq: u32, near: u64) -> u64 {
    let base = (near as u32).wrapping_mul(MSS).wrapping_add(FIRST);
    let off = i64::from(seq.wrapping_sub(base) as i32) / i64::from(MSS);
    near.saturating_add_signed(off)
}

fn segment(number: u64) -> Vec<u8> {
    let builder = PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 9, 1], 64)
        .tcp(40_000, 9000, seq(number), 500)
        .ack(1);
    let mut out = Vec::new();
    let written = builder.write(&mut out, &[number as u8; MSS as usize]);
    written.expect("fits");
    out
}

fn acknowledgement(ack: &Ack) -> Vec<u8> {
    let builder = PacketBuilder::ipv4([10, 0, 9, 1], [10, 0, 0, 1], 64)
        .tcp(9000, 40_000, 1, 500)
        .ack(seq(ack.next));
    let mut out = Vec::new();
    builder.write(&mut out, &[]).expect("fits");
    let mut options = vec![];
    if !ack.sack.is_empty() {
        options.extend([1, 1, 5, 2 + ack.sack.len() as u8 * 8]);
        for (begin, end) in &ack.sack {
            options.extend(seq(*begin).to_be_bytes());
            options.extend(seq(*end).to_be_bytes());
        }
    }
    tcp::pure_ack(&out, &options).expect("fits")
}

fn wire_time(bytes: usize, rate: u64) -> Duration {
    Duration::from_nanos(bytes as u64 * 8 * 1_000_000_000 / rate)
}

impl World {
    fn new(plan: Plan, boost: Boost) -> Self {
        let loss = |direction: u64| Loss {
            draws: SplitMix64::new(plan.seed.wrapping_mul(2).wrapping_add(direction)),
            bad: false,
        };
        Self {
            plan,
            now: Duration::ZERO,
            events: BTreeMap::new(),
            count: 0,
            sender: Sender::new(plan.sack),
            receiver: Receiver::default(),
            wired: VecDeque::new(),
            wired_busy: false,
            chains: [chain(boost, true), chain(boost, false)],
            radio_busy: [false; 2],
            loss: [loss(0), loss(1)],
        }
    }

    fn after(&mut self, delay: Duration, event: Event) {
        self.count += 1;
        self.events.insert((self.now + delay, self.count), event);
    }

    /// Returns the next timer outside the event list.
    fn deadline(&self) -> Option<Duration> {
        let chains = self.chains.iter().map(Chain::deadline);
        let hosts = [self.sender.deadline(), self.receiver.deadline()];
        chains.chain(hosts).flatten().min()
    }

    fn run(&mut self) {
        let end = Duration::from_secs(self.plan.seconds);
        self.after(Duration::ZERO, Event::Look);
        let first = self.sender.send(self.now);
        self.send(first);
        while self.now < end {
            let event = self.events.first_key_value().map(|(at, _)| at.0);
            let due = self.deadline().map(|at| at.max(self.now));
            match (event, due) {
                (Some(event), Some(due)) if due < event => self.on_time(due),
                (None, Some(due)) => self.on_time(due),
                (Some(_), _) => {
                    if let Some(((at, _), event)) = self.events.pop_first() {
                        self.now = at;
                        self.handle(event);
                    }
                }
                (None, None) => panic!("simulation stuck: {:?}", self.sender),
            }
            self.settle();
        }
    }

    fn on_time(&mut self, due: Duration) {
        // A constant deadline must not stop the simulated time.
        self.now = due.max(self.now + Duration::from_nanos(1));
        for chain in &mut self.chains {
            chain.on_time(self.now);
        }
        let sent = self.sender.on_time(self.now);
        self.send(sent);
        let ack = self.receiver.on_time(self.now);
        self.answer(ack);
    }

    fn answer(&mut self, ack: Option<Ack>) {
        let Some(mut ack) = ack else { return };
        if !self.plan.sack {
            ack.sack.clear();
        }
        self.chains[1].from_host(self.now, &acknowledgement(&ack));
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::WiredIdle => self.wired_busy = false,
            Event::AtNear(number) => self.chains[0].from_host(self.now, &segment(number)),
            Event::RadioIdle(direction) => self.radio_busy[direction] = false,
            Event::AtReceiver(bytes) => {
                let next = self.receiver.next;
                let number = tcp_of(&bytes, |tcp| number(tcp.seq, next));
                let ack = self.receiver.take(self.now, number);
                self.answer(ack);
            }
            Event::AckAtNear(bytes) => {
                self.chains[0].to_host(self.now, Packet::new(bytes, self.now));
            }
            Event::AckAtSender(bytes) => {
                let next = self.receiver.next;
                let ack = tcp_of(&bytes, |tcp| Ack {
                    next: number(tcp.ack, next),
                    sack: (tcp.sack())
                        .map(|(begin, end)| (number(begin, next), number(end, next)))
                        .collect(),
                });
                let sent = self.sender.hear(self.now, &ack);
                self.send(sent);
            }
            Event::Look => {
                let path = Path {
                    rtt: RADIO_DELAY * 2 + wire_time(1500, RADIO),
                    rate: RADIO,
                    ..Path::default()
                };
                for chain in &mut self.chains {
                    chain.set_path(self.now, &path);
                }
                self.after(LOOK, Event::Look);
            }
        }
    }

    fn send(&mut self, segments: Vec<u64>) {
        let room = WIRED_QUEUE.saturating_sub(self.wired.len());
        self.wired.extend(segments.into_iter().take(room));
    }

    /// Starts transmission on all idle links.
    fn settle(&mut self) {
        if !self.wired_busy
            && let Some(number) = self.wired.pop_front()
        {
            self.wired_busy = true;
            let time = wire_time(MSS as usize + 40, WIRED);
            self.after(time, Event::WiredIdle);
            self.after(time + self.plan.wired_delay, Event::AtNear(number));
        }
        while let Some(packet) = self.chains[0].poll_host() {
            self.after(self.plan.wired_delay, Event::AckAtSender(packet.bytes));
        }
        for direction in 0..2 {
            self.radio(direction);
        }
    }

    fn radio(&mut self, direction: usize) {
        let mut bytes = Vec::new();
        if self.radio_busy[direction]
            || (self.chains[direction].poll_message(self.now, 1500, &mut bytes)).is_none()
        {
            return;
        }
        self.radio_busy[direction] = true;
        let time = wire_time(bytes.len() + TUNNEL, RADIO);
        self.after(time, Event::RadioIdle(direction));
        if !self.loss[direction].takes(self.plan.gilbert) {
            let arrived = [Event::AtReceiver, Event::AckAtNear][direction](bytes);
            self.after(time + RADIO_DELAY, arrived);
        }
    }
}

fn tcp_of<T>(bytes: &[u8], read: impl FnOnce(tcp::Tcp<'_>) -> T) -> T {
    read(tcp::Tcp::read(bytes).expect("whole"))
}

pub fn run(plan: Plan, boost: Boost) -> Outcome {
    let mut world = World::new(plan, boost);
    world.run();
    let mut counters = String::new();
    for chain in &world.chains {
        chain.counters(&mut |booster, name, value| {
            counters += &format!(" {booster}.{name}={value}");
        });
        counters += &format!(
            " full={} late={};",
            chain.stats().dropped_full,
            chain.stats().dropped_late
        );
    }
    let sender = &world.sender;
    Outcome {
        bytes: world.receiver.next * u64::from(MSS),
        sender: format!(
            "cwnd {:.0}, again {}, twice {}, reductions {}, timeouts {}",
            sender.cwnd, sender.again, world.receiver.twice, sender.reductions, sender.timeouts
        ),
        counters,
    }
}
