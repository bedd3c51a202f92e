//! Causes of loss: classification of each lost packet against the truth.

use std::time::Duration;

use tunnel::{
    cause::{Cause, Classifier, LossEvent},
    path::PathSample,
};
use winkemu_link::{Direction, Engine, Fate, LinkConfig, LinkOptions, NANOS_PER_SECOND, Nanos};

use super::{
    PACKET,
    receiver::{Receiver, Report},
};

const RATE: f64 = 1e7;
const ONE_WAY: Nanos = 50_000_000;
/// 48 ms.
const QUEUE_BYTES: u64 = 60_000;

/// A link with an even flow under test, and a bursty competing one.
#[derive(Clone, Copy, Debug)]
pub struct Channel {
    /// Description.
    pub name: &'static str,
    /// Rate of the flow, relative to the link's.
    pub pace: f64,
    /// Mean rate of the competing flow, which is on and off for 100 ms each on average.
    pub cross: f64,
    /// Further options of the link.
    pub options: &'static str,
}

/// Packets by true cause (rows: link, congestion, outage) and by classified cause (columns).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Confusion(pub [[u64; 3]; 3]);

impl Confusion {
    /// Returns the share of all packets that is classified correctly.
    pub fn overall(&self) -> f64 {
        let all: u64 = self.0.iter().flatten().sum();
        (0..3).map(|i| self.0[i][i]).sum::<u64>() as f64 / all as f64
    }
}

/// Runs the channel for this many seconds. `alone`: the classifier knows the link's rate, and that
/// no other traffic shares it.
pub fn confusion(channel: &Channel, seconds: u64, alone: bool, seed: u64) -> Confusion {
    let (reports, sent, truth) = trace(channel, seconds, seed);
    let packet = Duration::from_secs_f64(PACKET as f64 * 8.0 / RATE);
    let mut classifier = Classifier::new();
    let mut table = Confusion::default();
    for report in &reports {
        classifier.on_gaps(
            &report.gaps,
            alone.then_some(packet),
            u64::MAX,
            |number| sent.get(number as usize).copied(),
            |event| count(&mut table, &event, &truth),
        );
        classifier.on_sample(&sample(report, sent[report.number as usize]));
    }
    table
}

fn count(table: &mut Confusion, event: &LossEvent, truth: &[Option<Cause>]) {
    for number in event.first..event.first + event.packets {
        // A late packet was not lost.
        if let Some(cause) = truth[number as usize] {
            table.0[cause as usize][event.cause as usize] += 1;
        }
    }
}

fn sample(report: &Report, sent_at: Duration) -> PathSample {
    let now = Duration::from_nanos(report.made + ONE_WAY);
    PathSample {
        now,
        number: report.number,
        sent_at,
        received_us: report.arrived / 1000,
        rtt: now - sent_at - Duration::from_nanos(report.made - report.arrived),
        packets: report.packets,
        bytes: report.bytes,
        marked: 0,
        sent_packets: report.number + 1,
        app_limited: false,
    }
}

type Trace = (Vec<Report>, Vec<Duration>, Vec<Option<Cause>>);

fn trace(channel: &Channel, seconds: u64, seed: u64) -> Trace {
    let mut link = Engine::new(&config(channel), seed);
    link.record();
    let mut receiver = Receiver::new(2 * ONE_WAY / 16);
    let (mut sent, mut owners, mut reports) = (Vec::new(), Vec::new(), Vec::new());
    let spacing = (PACKET as f64 * 8e9 / RATE / channel.pace) as Nanos;
    let mut others = Bursts::new(channel.cross, seed);
    let mut due: Nanos = 0;
    let mut now = 0;
    while now < seconds * NANOS_PER_SECOND {
        while let Some((_, packet)) = link.poll_deliver(now) {
            if packet.bytes.len() == PACKET {
                let number = u64::from_be_bytes(packet.bytes[..8].try_into().expect("8 bytes"));
                receiver.on_packet(packet.due, number, PACKET as u64);
            }
            link.recycle(packet);
        }
        reports.extend(receiver.poll(now));
        while others.due().is_some_and(|at| at <= now) {
            link.handle_packet(Direction::AtoB, &[0; 1500], now);
            owners.push(None);
            others.on_sent();
        }
        if due <= now {
            let mut packet = [0; PACKET];
            packet[..8].copy_from_slice(&(sent.len() as u64).to_be_bytes());
            link.handle_packet(Direction::AtoB, &packet, now);
            owners.push(Some(sent.len()));
            sent.push(Duration::from_nanos(now));
            due += spacing;
        }
        let next = [
            link.poll_timeout(),
            receiver.deadline(),
            others.due(),
            Some(due),
        ];
        now = next.into_iter().flatten().min().unwrap_or(now).max(now + 1);
    }
    let truth = truth(&mut link, &owners, sent.len());
    (reports, sent, truth)
}

fn config(channel: &Channel) -> LinkConfig {
    let text = format!(
        "rate=10mbit,delay=50ms,queue={QUEUE_BYTES}B{}",
        channel.options
    );
    let options: LinkOptions = text.parse().expect("the options are right");
    options
        .resolve_without_files()
        .expect("the options name no files")
}

fn truth(link: &mut Engine, owners: &[Option<usize>], packets: usize) -> Vec<Option<Cause>> {
    let mut truth = vec![None; packets];
    while let Some(decision) = link.poll_decision() {
        let owner = owners.get(decision.index as usize).copied().flatten();
        if let (Fate::Dropped { cause }, Some(owner)) = (decision.fate, owner) {
            truth[owner] = Some(match cause {
                winkemu_link::Cause::QueueFull
                | winkemu_link::Cause::CoDel
                | winkemu_link::Cause::PipeFull => Cause::Congestion,
                winkemu_link::Cause::Outage | winkemu_link::Cause::OutageInFlight => Cause::Outage,
                _ => Cause::Link,
            });
        }
    }
    truth
}

/// Packets at twice the mean rate, while on.
struct Bursts {
    share: f64,
    at: Nanos,
    until: Nanos,
    random: u64,
}

impl Bursts {
    fn new(share: f64, seed: u64) -> Self {
        Self {
            share,
            at: 0,
            until: 0,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        }
    }

    fn due(&self) -> Option<Nanos> {
        (self.share > 0.0).then_some(self.at)
    }

    fn on_sent(&mut self) {
        self.at += (1500.0 * 8e9 / RATE / self.share / 2.0) as Nanos;
        if self.at >= self.until {
            self.at += self.exponential();
            self.until = self.at + self.exponential();
        }
    }

    /// Returns nanoseconds, 100 ms on average (xorshift64).
    fn exponential(&mut self) -> Nanos {
        for (left, shift) in [(true, 13), (false, 7), (true, 17)] {
            self.random ^= if left {
                self.random << shift
            } else {
                self.random >> shift
            };
        }
        let unit = (self.random >> 11) as f64 / (1u64 << 53) as f64;
        (-(1.0 - unit).ln() * 1e8) as Nanos
    }
}

/// Links of the table.
pub const CHANNELS: [Channel; 11] = {
    const fn channel(name: &'static str, pace: f64, cross: f64, options: &'static str) -> Channel {
        Channel {
            name,
            pace,
            cross,
            options,
        }
    }
    [
        channel("paced at the link's rate, 2 % link", 1.0, 0.0, ",loss=2%"),
        channel("paced at 0.5, 2 % link", 0.5, 0.0, ",loss=2%"),
        channel(
            "paced at 0.5, 2 % link, jitter 5 ms",
            0.5,
            0.0,
            ",loss=2%,jitter=5ms",
        ),
        channel("paced at 1.1, no link loss", 1.1, 0.0, ""),
        channel("paced at 1.05, 2 % link", 1.05, 0.0, ",loss=2%"),
        channel("0.6 + bursty 0.5, no link loss", 0.6, 0.5, ""),
        channel("0.6 + bursty 0.5, 2 % link", 0.6, 0.5, ",loss=2%"),
        channel(
            "0.6 + bursty 0.5, bursts of 6.7",
            0.6,
            0.5,
            ",gilbert=p=0.0087,q=0.1491",
        ),
        channel(
            "0.6 + bursty 0.5, 2 %, jitter 5 ms",
            0.6,
            0.5,
            ",loss=2%,jitter=5ms",
        ),
        channel(
            "0.6 + bursty 0.5, 2 %, wink 0.1 x 100 ms",
            0.6,
            0.5,
            ",loss=2%,wink=p=0.1,i=100ms",
        ),
        channel(
            "0.9, bursts of 6.7, wink 0.2 x 200 ms",
            0.9,
            0.0,
            ",gilbert=p=0.0087,q=0.1491,wink=p=0.2,i=200ms",
        ),
    ]
};
