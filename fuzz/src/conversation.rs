//! A simple TCP through all boosters of a site, at both ends: the bytes arrive despite the boosters
//! and temporary losses on the link.

use std::{collections::VecDeque, time::Duration};

use arbitrary::Arbitrary;
use boosters::{
    exchange::Exchange,
    ip::Ip as Parsed,
    rule::Path,
    tcp::{Tcp, flags, is_after},
};

use crate::{
    chains::{Wanted, give, hosts, introduce, is_bounded, next, wake},
    shapes::Ip,
};

/// Two connections on the same ports, one after the other.
#[derive(Arbitrary, Debug)]
pub struct Case {
    wanted: [Wanted; 2],
    begins: [u32; 2],
    /// True if the boosters miss the second SYN.
    silent: bool,
    v6: bool,
    timed: bool,
    sack: bool,
    /// Messages that leave per tick.
    capacity: u8,
    window: u8,
    short: bool,
    /// Initial losses: where a bit is set, one in four.
    lost: u64,
    /// Ticks in which rules are on.
    rules: u64,
    renewed: u8,
}

const TICK: Duration = Duration::from_millis(20);
const MSS: u32 = 100;
const SEGMENTS: u32 = 60;
/// The tick after which the link loses nothing.
const LOSSY: u64 = 120;
/// The tick by which all must have arrived.
const TICKS: u64 = 12_000;
const RTO: Duration = Duration::from_secs(1);

/// A connection, as both hosts see it.
#[derive(Debug)]
struct Connection {
    begin: u32,
    /// Sender: acknowledged position, sent position, and time of the next retransmission.
    una: u32,
    next: u32,
    duplicates: u8,
    again: Duration,
    /// Receiver: segments received, and acknowledged position.
    has: Vec<bool>,
    acked: u32,
    /// Position in the receiver's own data.
    seq: u32,
}

impl Connection {
    fn new(begin: u32) -> Self {
        Self {
            begin,
            una: begin,
            next: begin,
            duplicates: 0,
            again: RTO,
            has: vec![false; SEGMENTS as usize],
            acked: begin,
            seq: 1,
        }
    }

    fn end(&self) -> u32 {
        self.begin.wrapping_add(SEGMENTS * MSS)
    }

    fn is_over(&self) -> bool {
        self.una == self.end()
    }
}

/// Both hosts and the link between.
struct World<'a> {
    case: &'a Case,
    ends: [Exchange; 2],
    /// Messages in flight to the near and the far end, with their arrival times.
    link: [VecDeque<(Duration, Vec<u8>)>; 2],
    now: Duration,
    tick: u64,
    draws: u64,
    sent: u64,
    came: u64,
    link_lost: u64,
}

/// Checks that exactly the sent bytes arrive, that nothing else is acknowledged, and that every
/// loss is counted.
pub fn run(case: &Case) {
    let deadline = Duration::from_millis(if case.short { 400 } else { 10_000 });
    let mut world = World {
        case,
        ends: case.wanted.map(|wanted| wanted.exchange(deadline)),
        link: Default::default(),
        now: Duration::ZERO,
        tick: 0,
        draws: 1,
        sent: 0,
        came: 0,
        link_lost: 0,
    };
    introduce(&mut world.ends, Duration::ZERO);
    for (number, begin) in case.begins.into_iter().enumerate() {
        let mut connection = Connection::new(begin);
        if number == 0 || !case.silent {
            world.open(&connection);
        }
        connection.again = world.now + RTO;
        let last = world.tick + TICKS;
        while !connection.is_over() {
            assert!(
                world.tick < last,
                "{connection:?}\n{:?}",
                counters(&world.ends)
            );
            world.step(&mut connection);
        }
        // Packets still in flight do not belong to the next connection.
        let quiet = world.tick + 200;
        while world.tick < quiet {
            world.step(&mut connection);
        }
    }
    world.settle();
}

fn counters(ends: &[Exchange; 2]) -> Vec<(&'static str, &'static str, u64)> {
    let mut all = Vec::new();
    for chain in ends.iter().flat_map(Exchange::chains) {
        chain.counters(&mut |booster, name, count| all.push((booster, name, count)));
    }
    all
}

impl World<'_> {
    fn packet(
        &self,
        back: bool,
        numbers: [u32; 2],
        flag: u8,
        options: &[u8],
        data: &[u8],
    ) -> Vec<u8> {
        let ip = Ip {
            v6: self.case.v6,
            host: 1,
            reversed: back,
            ecn: 0,
            id: self.tick as u16,
            wrong: None,
        };
        let mut bytes = if back {
            vec![0, 80, 0x13, 0x88]
        } else {
            vec![0x13, 0x88, 0, 80]
        };
        for number in numbers {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        let mut options = options.to_vec();
        if self.case.timed {
            options.extend_from_slice(&[1, 1, 8, 10]);
            options.extend_from_slice(&(self.tick as u32).to_be_bytes());
            options.extend_from_slice(&1u32.to_be_bytes());
        }
        bytes.extend_from_slice(&[(20 + options.len() as u8) << 2, flag, 0x20, 0, 0, 0, 0, 0]);
        bytes.extend_from_slice(&options);
        bytes.extend_from_slice(data);
        ip.around(0, 6, bytes)
    }

    /// Exchanges the SYNs, which pass regardless of losses.
    fn open(&mut self, connection: &Connection) {
        let permitted: &[u8] = if self.case.sack { &[4, 2, 1, 1] } else { &[] };
        let seq = connection.begin.wrapping_sub(1);
        let syn = self.packet(false, [seq, 0], flags::SYN, permitted, &[]);
        let answer = self.packet(
            true,
            [0, connection.begin],
            flags::SYN | flags::ACK,
            permitted,
            &[],
        );
        for (from, packet) in [(0, syn), (1, answer)] {
            self.ends[from].from_host(self.now, 0, &packet);
            while let Some(message) = next(&mut self.ends[from], self.now, 1300) {
                give(&mut self.ends[1 - from], self.now, &message);
            }
            for end in &mut self.ends {
                hosts(end);
            }
        }
    }

    fn step(&mut self, connection: &mut Connection) {
        self.tick += 1;
        self.now += TICK;
        let claimed = if self.case.rules >> (self.tick / 16 % 64) & 1 > 0 {
            0.1
        } else {
            0.0
        };
        let path = Path {
            loss: claimed,
            counts: [self.tick, self.tick / 10, self.tick / 11],
            ..Path::default()
        };
        for (end, wanted) in self.ends.iter_mut().zip(self.case.wanted) {
            if self.tick.is_multiple_of(8) {
                end.set_path(self.now, &path);
            }
            wake(end, self.now);
            is_bounded(end, self.now, wanted);
        }
        if self.case.renewed > 0 && self.tick == u64::from(self.case.renewed) {
            self.ends.iter_mut().for_each(Exchange::renew);
            introduce(&mut self.ends, self.now);
        }
        self.send(connection);
        self.carry();
        for packet in hosts(&mut self.ends[1]) {
            self.receive(connection, &packet.bytes);
        }
        for packet in hosts(&mut self.ends[0]) {
            self.hear(connection, &packet.bytes);
        }
    }

    fn segment(&mut self, connection: &Connection, seq: u32) {
        let number = seq.wrapping_sub(connection.begin) / MSS;
        let data = [number as u8; MSS as usize];
        let packet = self.packet(false, [seq, 1], flags::ACK, &[], &data);
        self.sent += 1;
        self.ends[0].from_host(self.now, 0, &packet);
    }

    fn send(&mut self, connection: &mut Connection) {
        if connection.una != connection.next && self.now >= connection.again {
            connection.again = self.now + RTO;
            self.segment(connection, connection.una);
        }
        let window = u32::from(self.case.window % 16 + 1) * MSS;
        while connection.next != connection.end()
            && connection.next.wrapping_sub(connection.una) < window
        {
            self.segment(connection, connection.next);
            connection.next = connection.next.wrapping_add(MSS);
        }
    }

    /// Moves messages over the link, a limited number per tick.
    fn carry(&mut self) {
        for from in 0..2 {
            for _ in 0..=self.case.capacity % 8 {
                let Some(message) = next(&mut self.ends[from], self.now, 1300) else {
                    break;
                };
                self.draws = self
                    .draws
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let bad = self.tick < LOSSY && self.case.lost >> (self.tick % 64) & 1 > 0;
                if bad && (self.draws >> 40).is_multiple_of(4) {
                    self.link_lost += 1;
                } else {
                    self.link[1 - from].push_back((self.now + TICK * 2, message));
                }
            }
        }
        for to in 0..2 {
            while let Some((_, message)) = self.link[to].pop_front_if(|(at, _)| *at <= self.now) {
                give(&mut self.ends[to], self.now, &message);
            }
        }
    }

    /// Handles a packet at the far host.
    fn receive(&mut self, connection: &mut Connection, bytes: &[u8]) {
        let tcp = Parsed::parse(bytes)
            .and_then(Tcp::parse)
            .expect("only sent packets arrive");
        assert!(tcp.is_whole());
        if tcp.data().is_empty() {
            return;
        }
        self.came += 1;
        let offset = tcp.seq.wrapping_sub(connection.begin);
        let number = (offset / MSS) as usize;
        let other = self.case.begins.iter().any(|begin| {
            tcp.seq.wrapping_sub(*begin) < SEGMENTS * MSS && *begin != connection.begin
        });
        if number >= connection.has.len() && other {
            return; // Of the connection before: no host takes it.
        }
        assert!(offset.is_multiple_of(MSS) && number < connection.has.len());
        assert!(
            tcp.data().len() == MSS as usize && tcp.data().iter().all(|byte| *byte == number as u8)
        );
        let twice = std::mem::replace(&mut connection.has[number], true);
        let all = connection.has.iter().take_while(|has| **has).count() as u32;
        connection.acked = connection.begin.wrapping_add(all * MSS);
        let mut options = Vec::new();
        if self.case.sack && (twice || number as u32 >= all) {
            options.extend_from_slice(&[1, 1, 5, 10]);
            options.extend_from_slice(&tcp.seq.to_be_bytes());
            options.extend_from_slice(&tcp.end().to_be_bytes());
        }
        // Occasionally the acknowledgement carries data, which needs no answer.
        let data: &[u8] = if self.tick.is_multiple_of(7) {
            b"answer"
        } else {
            b""
        };
        let numbers = [connection.seq, connection.acked];
        let ack = self.packet(true, numbers, flags::ACK, &options, data);
        connection.seq = connection.seq.wrapping_add(data.len() as u32);
        self.ends[1].from_host(self.now, 0, &ack);
    }

    /// Handles a packet at the near host.
    fn hear(&mut self, connection: &mut Connection, bytes: &[u8]) {
        let tcp = Parsed::parse(bytes)
            .and_then(Tcp::parse)
            .expect("only sent packets arrive");
        assert!(tcp.is_whole());
        let of = |begin: u32| tcp.ack.wrapping_sub(begin) <= SEGMENTS * MSS;
        if !of(connection.begin) && self.case.begins.into_iter().any(of) {
            // A packet of the connection before, restored late or not seen to end: hosts ignore it.
            return;
        }
        assert!(
            !is_after(tcp.ack, connection.acked),
            "acknowledged without data: {} of {connection:?} {:?}",
            tcp.ack,
            self.case
        );
        if is_after(tcp.ack, connection.una) {
            connection.una = tcp.ack;
            connection.duplicates = 0;
            connection.again = self.now + RTO;
        } else if tcp.ack == connection.una && tcp.data().is_empty() && !connection.is_over() {
            connection.duplicates += 1;
            if connection.duplicates == 3 {
                connection.again = self.now + RTO;
                self.segment(connection, connection.una);
            }
            connection.duplicates = connection.duplicates.min(100);
        }
    }

    /// Checks that every packet that did not arrive was counted: by the link, or by the booster
    /// that dropped it.
    fn settle(&self) {
        let names = ["known", "repeated", "dropped"];
        let all = counters(&self.ends);
        let left: u64 = all
            .iter()
            .filter(|(_, name, _)| names.contains(name))
            .map(|(_, _, count)| *count)
            .sum();
        let dropped: u64 = self
            .ends
            .iter()
            .flat_map(Exchange::chains)
            .map(|chain| {
                chain.stats().dropped_full + chain.stats().dropped_late + chain.stats().dropped_long
            })
            .sum();
        // A message lost on the link may be a fragment, or a repair packet; a renewal may lose a
        // partly received one.
        if self.link_lost == 0 && self.case.renewed == 0 {
            assert!(
                self.came + left + dropped >= self.sent,
                "{} of {}: {all:?}",
                self.came,
                self.sent
            );
        }
    }
}
