//! Random plans.

mod link;

use std::time::Duration;

use link::Link;

use tunnel::{
    class::Class,
    session::{Outages, Rate, SessionConfig, SkipConfig},
    wire::{ResetCode, STREAM_HEADER_MAX},
};

use super::{Habits, MessagesPlan, Plan, Step, StreamPlan};
use crate::{beside::MESSAGE_MIN, flow::STREAM_HEADER_MIN, rng::Rng, wire::OVERHEAD};

/// Bounds of drawn plans.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scope {
    /// Approximate maximum bytes of all streams of a plan.
    pub bytes_max: u64,
    /// Maximum one-way delay of the link.
    pub delay_max: Duration,
    /// Minimum rate, in bit/s.
    pub rate_min: u64,
    /// True if ends restart and roam.
    pub restarts: bool,
    /// True if the rate may be unknown.
    pub auto: bool,
    /// True if there are messages outside streams.
    pub packets: bool,
    /// Permitted duration, relative to a link at its rate.
    pub patience: u32,
}

impl Scope {
    /// Sessions without endpoints.
    pub const SESSION: Self = Self {
        bytes_max: 200_000,
        delay_max: Duration::from_millis(300),
        rate_min: 50_000,
        restarts: false,
        auto: false,
        packets: false,
        patience: 20,
    };
    /// Sessions, some of them without a configured rate.
    pub const UNKNOWN_RATE: Self = Self {
        auto: true,
        ..Self::SESSION
    };
    /// Endpoints with handshakes.
    pub const ENDPOINT: Self = Self {
        restarts: true,
        ..Self::SESSION
    };
    /// Sessions, with messages outside streams.
    pub const PACKETS: Self = Self {
        packets: true,
        ..Self::UNKNOWN_RATE
    };
    /// Endpoints, with messages outside streams.
    pub const ENDPOINT_PACKETS: Self = Self {
        packets: true,
        ..Self::ENDPOINT
    };
    /// Sessions that send one packet per round trip.
    pub const STOP_AND_WAIT: Self = Self {
        bytes_max: 20_000,
        delay_max: Duration::from_millis(20),
        rate_min: 500_000,
        auto: false,
        patience: 200,
        ..Self::SESSION
    };
}

impl Plan {
    /// Draws the plan of that seed.
    pub fn draw(seed: u64, scope: &Scope) -> Self {
        let mut rng = Rng::new(seed);
        let link = Link::draw(&mut rng, scope);
        let mut sessions = sessions(&mut rng, scope, &link);
        let streams = streams(&mut rng, scope);
        let steps = steps(&mut rng, scope, &link);
        let mtu = mtu(&mut rng, &sessions[0]);
        let lateness = rng.one(&[
            Duration::ZERO,
            Duration::from_micros(100),
            Duration::from_millis(4),
        ]);
        let mut messages = Vec::new();
        if scope.packets {
            // With an RNG of their own, so that all other choices stay unchanged.
            messages = draw_messages(&mut Rng::new(seed ^ 0x0b0b), scope, &sessions[0]);
            for session in &mut sessions {
                (session.packets, session.peer_packets) = (true, true);
            }
        }
        let mut plan = Self {
            seed,
            link: link.options.clone(),
            ab: link.only[0].clone(),
            ba: link.only[1].clone(),
            mtu,
            sessions,
            lateness,
            streams,
            messages,
            steps,
            quiet_from: link.quiet_from,
            patience: Duration::ZERO,
            memory_max: 0,
        };
        plan.patience = plan.patience(scope, &link);
        plan.memory_max = 3 * (link.rate / 8 * link.delay.as_millis() as u64 / 500) + (2 << 20);
        plan
    }

    /// Returns the time limit: long for any working run, short against a stuck one.
    fn patience(&self, scope: &Scope, link: &Link) -> Duration {
        let rate = link.rate.min(link.back) as f64;
        let packets = Duration::from_secs_f64(4.0 * 12_000.0 / rate);
        let round = 2 * link.delay + Duration::from_millis(50) + packets;
        let slow = f64::from(scope.patience) / 20.0;
        let mut work = Duration::from_secs(30) + 100 * round;
        for stream in &self.streams {
            work += stream.at + stream.reset.map_or(Duration::ZERO, |(_, after, _)| after);
            work += 3 * round;
            for (habits, reader) in stream.habits.iter().zip(stream.habits.iter().rev()) {
                let seconds = habits.bytes as f64 * 8.0 / (rate * link.through);
                // A packet per credit and round trip, where credits are tiny.
                let turn = reader.window.min(habits.buffer).min(habits.chunk);
                let turns = habits.bytes / turn.max(1) + 1;
                let chunks = habits.bytes / habits.chunk.max(1);
                work += Duration::from_secs_f64(seconds * f64::from(scope.patience))
                    + round.mul_f64(slow * turns as f64 * 2.0 / link.through)
                    + habits.gap.mul_f64(chunks as f64)
                    + habits.stall.map_or(Duration::ZERO, |(_, time)| time);
            }
        }
        for messages in &self.messages {
            let bytes = messages.count as f64 * (messages.len + OVERHEAD) as f64;
            work += Duration::from_secs_f64(bytes * 8.0 / rate * 2.0);
        }
        for (at, _, step) in &self.steps {
            work += *at;
            if let Step::Freeze(time) = step {
                work += *time;
            }
        }
        work.mul_f64(1.0 / link.through)
    }
}

fn sessions(rng: &mut Rng, scope: &Scope, link: &Link) -> [SessionConfig; 2] {
    let packet_start = rng.one(&[1200_usize, 1200, 576, 1375]);
    let packet_max = packet_start.max(rng.one(&[1200_usize, 1400, 1447]));
    let stream_credit = rng.one(&[1_u64 << 16, 1 << 20, 4000, 100, 1 << 18]);
    let session_credit = rng.one(&[1_u64 << 26, 1 << 20, 20_000]).max(stream_credit);
    let streams_max = rng.one(&[1_u32, 2, 10, 100, 1000]);
    let rtt = rng.one(&[2 * link.delay, 2 * link.delay, Duration::from_millis(100)]);
    let outages = rng.one(&[
        Outages::Never,
        Outages::After(Duration::from_secs(1)),
        Outages::AtOnce,
    ]);
    let know = rng.one(&[1.0, 1.0, 0.95, 0.5, 1.3]);
    let auto = scope.auto && rng.happens(0.25);
    let overhead_max = rng.one(&[0.0, 0.1, 0.5, 1.0]);
    let known_back = rng.happens(0.5);
    [0, 1].map(|end| {
        let rates = if end == 0 {
            [link.rate, link.back]
        } else {
            [link.back, link.rate]
        };
        SessionConfig {
            initiator: end == 0,
            rate: match ((rates[0] as f64 * know) as u64, outages) {
                _ if auto => Rate::Auto,
                (rate, Outages::Never) => Rate::Dedicated(rate),
                (rate, _) => Rate::Stated(rate),
            },
            return_rate: known_back.then_some(rates[1]),
            rtt,
            packet_start,
            packet_max,
            overhead: OVERHEAD,
            outages: if auto { Outages::AtOnce } else { outages },
            stream_credit,
            session_credit,
            kept_max: 64 << 20,
            streams_max,
            packets: false,
            unreached: Default::default(),
            peer_packets: false,
            peer_rests: true,
            overhead_max,
            memory: None,
            skips: SkipConfig::default(),
        }
    })
}

/// Few enough to leave time for streams.
fn draw_messages(rng: &mut Rng, scope: &Scope, session: &SessionConfig) -> Vec<MessagesPlan> {
    let queues = rng.between(1, 4);
    (0..queues)
        .map(|_| {
            let most = session.packet_max as u64 + 100;
            let len = rng.sized(MESSAGE_MIN as u64, most);
            MessagesPlan {
                end: rng.between(0, 1) as usize,
                at: rng.time(Duration::from_secs(1)),
                class: rng.one(&CLASSES),
                site: rng.between(0, 3) as u32,
                count: rng.sized(1, scope.bytes_max / queues / (len + 50)),
                gap: rng.one(&[
                    Duration::ZERO,
                    Duration::from_millis(1),
                    Duration::from_millis(20),
                    Duration::from_millis(900),
                ]),
                len: len as usize,
            }
        })
        .collect()
}

fn mtu(rng: &mut Rng, session: &SessionConfig) -> Vec<(Duration, usize)> {
    let minimum = session.packet_start + OVERHEAD;
    let most = session.packet_max + OVERHEAD;
    match rng.between(0, 9) {
        0..=6 => Vec::new(),
        7..=8 => vec![(
            Duration::ZERO,
            rng.between(minimum as u64, most as u64) as usize,
        )],
        // The MTU decreases during the run.
        _ => vec![
            (Duration::ZERO, most),
            (rng.time(Duration::from_secs(3)), minimum),
        ],
    }
}

fn streams(rng: &mut Rng, scope: &Scope) -> Vec<StreamPlan> {
    let count = match rng.between(0, 9) {
        0..=6 => rng.between(1, 5),
        7..=8 => rng.between(5, 12),
        _ => rng.between(20, 60),
    };
    (0..count)
        .map(|_| stream(rng, scope, scope.bytes_max / count))
        .collect()
}

const CLASSES: [Class; 6] = [
    Class::Interactive,
    Class::Normal,
    Class::Normal,
    Class::Bulk,
    Class::Bulk,
    Class::DelayTolerant,
];

fn stream(rng: &mut Rng, scope: &Scope, bytes: u64) -> StreamPlan {
    let slow = scope.delay_max.max(Duration::from_millis(50));
    StreamPlan {
        opener: rng.between(0, 1) as usize,
        at: if rng.happens(0.5) {
            Duration::ZERO
        } else {
            rng.time(Duration::from_secs(2))
        },
        class: rng.one(&CLASSES),
        site: rng.between(0, 3) as u32,
        stream_header: rng.one(&[STREAM_HEADER_MIN, 20, STREAM_HEADER_MAX]),
        habits: both_habits(rng, bytes),
        reset: rng.happens(0.2).then(|| {
            let who = rng.between(0, 1) as usize;
            let after = if rng.happens(0.2) {
                Duration::ZERO
            } else {
                rng.time(4 * slow)
            };
            (who, after, rng.one(&ResetCode::ALL))
        }),
        reclass: rng
            .happens(0.1)
            .then(|| (rng.time(4 * slow), rng.one(&CLASSES))),
    }
}

fn both_habits(rng: &mut Rng, most: u64) -> [Habits; 2] {
    let answers = rng.happens(0.3);
    let mut both = [writes(rng, most, false), writes(rng, most, answers)];
    for reader in 0..2 {
        let bytes = both[1 - reader].bytes;
        let few = (bytes / 50).max(1);
        both[reader].window = rng.one(&[1 << 20, 1 << 16, 3000.max(few), few]);
        both[reader].stall = rng
            .happens(0.2)
            .then(|| (rng.between(0, bytes), rng.time(Duration::from_secs(2))));
    }
    both
}

/// Draws how one end writes.
fn writes(rng: &mut Rng, most: u64, answers: bool) -> Habits {
    let bytes = match rng.between(0, 5) {
        0 => 0,
        1 => rng.between(1, 10),
        _ => rng.sized(1, most),
    };
    let few = (bytes / 50).max(1);
    Habits {
        bytes,
        chunk: rng.one(&[u64::MAX, u64::MAX, 4096.max(few), few]),
        gap: if rng.happens(0.6) {
            Duration::ZERO
        } else {
            rng.time(Duration::from_millis(40))
        },
        buffer: rng.one(&[u64::MAX, 1 << 20, 10_000.max(few)]),
        answers,
        ..Habits::default()
    }
}

fn steps(rng: &mut Rng, scope: &Scope, link: &Link) -> Vec<(Duration, usize, Step)> {
    let mut steps = Vec::new();
    let mut step = |rng: &mut Rng, step| {
        let end = rng.between(0, 1) as usize;
        steps.push((rng.time(Duration::from_secs(3)), end, step));
    };
    if rng.happens(0.15) {
        let time = Duration::from_micros(rng.sized(10, 1_500_000));
        step(rng, Step::Freeze(time));
    }
    // Each hint of a link going down is followed by one of it coming up.
    if link.quiet_from > Duration::ZERO && rng.happens(0.3) {
        step(rng, Step::HintDown);
    }
    if scope.restarts && rng.happens(0.15) {
        step(rng, Step::Restart);
    }
    // The responder keeps its address: the initiator could not find it otherwise.
    if scope.restarts && rng.happens(0.15) {
        steps.push((rng.time(Duration::from_secs(3)), 0, Step::Roam));
    }
    let down: Vec<_> = steps
        .iter()
        .filter(|(_, _, step)| *step == Step::HintDown)
        .copied()
        .collect();
    for (at, end, _) in down {
        steps.push((
            at.max(link.quiet_from) + Duration::from_millis(1),
            end,
            Step::HintUp,
        ));
    }
    steps
}
