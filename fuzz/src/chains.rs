//! All boosters of a site, at both ends, under packets and messages of all kinds.

use std::time::Duration;

use arbitrary::Arbitrary;
use boosters::{
    ack_filter, ack_reconstruction, arq, compress, congestion, divacks,
    ecn::Ecn,
    exchange::Exchange,
    fec, jitter,
    packet::Packet,
    rule::{Path, Rule, When},
    settings::{self, Boosted},
    snoop,
    wire::Abilities,
};

use crate::shapes::{Bytes, Shape};

/// Boosters of one end.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// Two bits per booster: on (two values), on by a rule, or absent.
    each: u32,
    queue: u16,
    seed: u64,
}

impl Wanted {
    fn boosted<T>(self, number: u32, config: T) -> Option<Boosted<T>> {
        let rule = match self.each >> (number * 2) & 3 {
            0 => return None,
            // By the loss that the peer reports.
            1 => Rule {
                when: When::Rule,
                loss_above: "1%".parse().ok(),
                after: Duration::ZERO,
                ..Rule::ALWAYS
            },
            _ => Rule::ALWAYS,
        };
        Some(Boosted { rule, config })
    }

    /// Returns the queue's size in bytes.
    pub(crate) fn queue(self) -> usize {
        600 + usize::from(self.queue) % 20_000
    }

    pub(crate) fn exchange(self, deadline: Duration) -> Exchange {
        let mark = [congestion::Mark::Both, congestion::Mark::DupAck][self.seed as usize % 2];
        let settings = settings::Settings {
            queue: self.queue(),
            deadline,
            seed: self.seed,
            checksum: self.boosted(0, ()),
            data_filter: self.boosted(1, ()),
            snoop: self.boosted(
                2,
                snoop::Config {
                    cache: CACHE,
                    ..snoop::Config::default()
                },
            ),
            divacks: self.boosted(3, divacks::Config::default()),
            ack_filter: self.boosted(4, ack_filter::Config::default()),
            congestion: self.boosted(
                5,
                congestion::Config {
                    mark,
                    ..congestion::Config::default()
                },
            ),
            ack_reconstruction: self.boosted(6, ack_reconstruction::Config::default()),
            jitter: self.boosted(7, jitter::Config::default()),
            compress: self.boosted(8, compress::Config::default()),
            arq: self.boosted(9, arq::Config::default()),
            fec: self.boosted(10, fec::Config::default()),
        };
        Exchange::new(vec![settings::chain(&settings)])
    }
}

/// Cache of snoop, in bytes.
const CACHE: usize = 1 << 16;

/// Boosters and a sequence of events.
#[derive(Arbitrary, Debug)]
pub struct Case {
    wanted: [Wanted; 2],
    first: [Step; 24],
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
struct Step {
    after: u8,
    seconds: bool,
    /// True if the event is at the far end.
    far: bool,
    what: What,
}

#[derive(Arbitrary, Debug)]
enum What {
    /// A number of packets of a flow, from hosts.
    Hosts(Shape, u8),
    /// A number of messages to deliver to the other end, except those with a bit here.
    Carry {
        most: u8,
        lost: u8,
        room: u16,
    },
    /// A message that the other end did not write.
    Message {
        channel: u8,
        kind: u8,
        bytes: Bytes,
    },
    Path {
        loss: u8,
        rtt: u16,
        room: u16,
    },
    Renew,
}

/// Checks that nothing panics, that no deadline stays due, and that memory is bounded.
pub fn run(case: &Case) {
    let deadline = Duration::from_secs(1);
    let mut ends = case.wanted.map(|wanted| wanted.exchange(deadline));
    let mut now = Duration::ZERO;
    for step in case.first.iter().chain(&case.steps).take(120) {
        let unit = if step.seconds { 1000 } else { 1 };
        now += Duration::from_millis(u64::from(step.after) * unit);
        for end in &mut ends {
            wake(end, now);
        }
        let [near, far] = &mut ends;
        let (from, to) = if step.far { (far, near) } else { (near, far) };
        match &step.what {
            What::Hosts(shape, count) => {
                for n in 0..u16::from(count % 40) {
                    from.from_host(now, 0, &shape.bytes(n));
                }
            }
            What::Carry { most, lost, room } => {
                let room = usize::from(room % 1500).max(100);
                for number in 0..u32::from(most % 64) {
                    let Some(message) = next(from, now, room) else {
                        break;
                    };
                    assert!(message.len() <= room);
                    if lost >> (number % 8) & 1 == 0 {
                        give(to, now, &message);
                    }
                }
            }
            What::Message {
                channel,
                kind,
                bytes,
            } => {
                let channel = match channel % 67 {
                    66 => 127, // An introduction.
                    other => other,
                };
                give(to, now, &[&[channel, kind % 0x20], &bytes.0[..]].concat());
            }
            What::Path { loss, rtt, room } => {
                let path = Path {
                    loss: f64::from(*loss) / 255.0,
                    rtt: Duration::from_millis((*rtt).into()),
                    room: (*room).into(),
                    ..Path::default()
                };
                from.set_path(now, &path);
            }
            What::Renew => from.renew(),
        }
        for (end, wanted) in ends.iter_mut().zip(case.wanted) {
            wake(end, now);
            is_bounded(end, now, wanted);
            while end.poll_host().is_some() {}
        }
    }
}

/// Checks that queues and caches are within their limits.
pub(crate) fn is_bounded(end: &Exchange, now: Duration, wanted: Wanted) {
    for chain in end.chains() {
        assert!(chain.queued(now).0 <= wanted.queue());
        chain.counters(&mut |booster, name, count| {
            let most = match name {
                "kept_bytes" if booster == "snoop" => CACHE as u64,
                "connections" => 4096,
                _ => u64::MAX,
            };
            assert!(count <= most, "{booster} {name} {count}");
        });
    }
}

/// Returns the next message or control frame, with its channel.
pub(crate) fn next(end: &mut Exchange, now: Duration, room: usize) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let any =
        end.poll_word(now, room, &mut out) || end.poll_message(now, 0, room, &mut out).is_some();
    any.then_some(out)
}

pub(crate) fn give(end: &mut Exchange, now: Duration, message: &[u8]) {
    end.handle(now, message[0], &message[1..], Ecn::NotEct, &mut |_| {
        Some(0)
    });
}

/// Calls `wake` until no deadline is due; fails if deadlines never end.
pub(crate) fn wake(end: &mut Exchange, now: Duration) {
    wake_by(end, now, &mut |_| Some(0));
}

/// Wakes an end like [`wake`]; `site` maps a packet to the chain of its site.
pub(crate) fn wake_by(
    end: &mut Exchange,
    now: Duration,
    site: &mut dyn FnMut(&[u8]) -> Option<usize>,
) {
    let is_due = |end: &Exchange| end.deadline().is_some_and(|at| at <= now);
    for _ in 0..2000 {
        if !is_due(end) {
            return;
        }
        end.on_time(now, site);
    }
    panic!("a deadline that stays");
}

/// Exchanges the boosters that each end supports, as after a second of a session.
pub(crate) fn introduce(ends: &mut [Exchange; 2], now: Duration) {
    let mut word = vec![127, 1];
    word.extend_from_slice(&Abilities::ALL.to_be_bytes());
    word.push(1);
    for end in ends {
        give(end, now, &word);
    }
}

/// Returns all packets for hosts.
pub(crate) fn hosts(end: &mut Exchange) -> Vec<Packet> {
    std::iter::from_fn(|| end.poll_host())
        .map(|(_, packet)| packet)
        .collect()
}
