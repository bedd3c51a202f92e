//! The measured rate of a link: any, or one below a stated rate.

mod phases;
mod signal;
#[cfg(test)]
mod tests;
mod train;
mod window;

use std::{collections::VecDeque, time::Duration};

use self::{signal::Signal, train::Train, window::Window};
use super::{ControllerConfig, Found};
use crate::{
    cause::{Cause, LossEvent},
    path::{PathMemory, PathSample},
};

/// Round trips for which the highest rate is believed.
const KEEP_ROUNDS: f64 = 10.0;
/// Round trips between two pulses, beside what they take themselves.
const CRUISE_ROUNDS: (f64, f64) = (2.0, 32.0);
/// How much a pulse adds.
const PULSE: f64 = 1.25;
/// Where a round trip is fewer packets than this a pulse, which is that many packets long, is several round trips: it adds
/// two packets to the queue, the least that shows, as this adds two packets to ten.
const PULSE_PACKETS: f64 = 10.0;
const PULSE_COARSE: f64 = 1.2;
/// What may be in flight beyond what the link carries in a round trip when a drain ends: so much of a round trip, but half a
/// packet at least.
const DRAINED: (f64, f64) = (1.0 / 32.0, 0.5);
/// Of the train's spread.
const TRAIN_SHARE: f64 = 0.8;
/// The share of the link that we have, below which somebody else's queue is assumed.
const SHARE_ALONE: f64 = 0.7;
/// Round trips in company before we look whether we still are.
const TRIAL_ROUNDS: (f64, f64) = (120.0, 960.0);
/// Round trips after which meeting a full queue once is forgotten.
const QUEUE_FULL_ROUNDS: f64 = 100.0;
/// The least rate is a long packet in that time, in seconds, or in a round trip if that is longer: a packet may take
/// many round trips of a slow link.
const PACKET_TIME_MAX: f64 = 1.0;
/// Reports and beacons are sent as if the link carried at least that, in bits a second: a beacon a second. Else a rate
/// that was measured too low, for want of traffic, would keep both ends from hearing of each other.
const SAFE_MIN: u64 = 80_000;
/// And at most that, as long as nothing has been measured.
const GUESS_MAX: u64 = 200_000;
/// Round trips longer than this, in seconds, are those of radios with long interleavers, which may be
/// as slow as [`SLOW_RATE`].
const SLOW_RTT: f64 = 2.5;
/// Stands for [`SAFE_MIN`] and [`GUESS_MAX`] there, in bits a second: 80 kbit/s of beacons would be
/// all of such a link. The rate is that of the preset `hf`.
const SLOW_RATE: u64 = 2400;

/// The least rate with which the reports of a session reckon whose rate is measured, in bits a
/// second, at this round trip.
pub fn min_safe_rate(rtt: Duration) -> u64 {
    min_safe(rtt.as_secs_f64())
}

fn min_safe(rtt: f64) -> u64 {
    if rtt > SLOW_RTT { SLOW_RATE } else { SAFE_MIN }
}

/// A rate this close below the stated one is that: rates cannot be measured any better.
const AS_STATED: f64 = 0.96;
/// A sender of more than this share of the stated rate has a part in the queue that stands.
const OURS: f64 = 0.5;
/// Of a round trip's packets, those that may meet a full queue within two.
const OVERFLOW: f64 = 0.02;

/// What is being done. See docs/protocol.md for the drawing.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// As fast as has been stated; what was sent before `from` is not judged.
    Stated { from: f64 },
    /// Twice as fast every round trip, until a queue is seen.
    Climb {
        best: f64,
        flat: u32,
        round_end: f64,
    },
    /// Slower than the link until no more is in flight than it carries.
    Drain { gain: f64, from: f64, rate: f64 },
    /// As fast as the link; what was sent before `from` is not judged.
    Cruise { from: f64 },
    /// A little faster than the link.
    Pulse { from: f64, rate: f64, idle: bool },
    /// With a window, as others do whose queue this is.
    Compete { trial_at: f64 },
}

impl Phase {
    fn climb(best: f64, round_end: f64) -> Self {
        let flat = 0;
        Self::Climb {
            best,
            flat,
            round_end,
        }
    }
}

/// The link carries less than stated if it has for so long, in round trips and seconds: a burst of
/// another's is shorter.
const LESS_ROUNDS: f64 = 10.0;
const LESS_TIME: f64 = 5.0;

/// Packets found lost since the last sample.
#[derive(Clone, Copy, Debug, Default)]
struct Lost {
    by_link: u64,
    congested: u64,
    /// When the last one of these was sent.
    congested_at: Option<Duration>,
}

/// Measures the rate: sends a train, climbs, and then sends faster for a moment now and then.
#[derive(Clone, Debug)]
pub struct Auto {
    signal: Signal,
    train: Train,
    overhead: u64,
    /// The bits of a long packet, as they are at the beginning.
    long: f64,
    phase: Phase,
    /// Bits a second that the link is thought to carry.
    rate: f64,
    /// The stated rate; infinite if there is none.
    ceiling: f64,
    highest: VecDeque<(f64, f64)>,
    sent: u64,
    /// A pulse whose outcome is not known: when it began and ended, the rate before it, whether there was no
    /// queue before it.
    judging: Option<(f64, f64, f64, bool)>,
    /// What has been sent since then cannot have filled a queue that only we use.
    queue_free_since: f64,
    /// When something sent in calm met a full queue: the rate may have been out of date, once.
    queue_full_at: Option<f64>,
    /// Round trips from one pulse to the next: more of them where pulses make the queue overflow.
    cruise_rounds: f64,
    /// Of the last pulse's packets, those that seem to have met a full queue.
    overflowed: u64,
    /// The share of packets that the link loses, smoothed.
    link_loss: f64,
    /// Packets sent, as of the last sample.
    sampled: u64,
    /// Bits in flight beyond what the link carries in a round trip.
    excess: f64,
    /// Of the last reading, in bits a second.
    carried: f64,
    /// Drains in a row that left a queue.
    foreign: u32,
    window: Window,
    trial_rounds: f64,
    /// Since when we have had the link for ourselves again, as a trial.
    trial_since: Option<f64>,
    marked: u64,
    /// As of the last outage.
    memory: PathMemory,
    /// Something has been measured: the rate is no guess.
    measured: bool,
    /// All that was stated has been used.
    used: bool,
    /// Since when less than stated has been carried.
    less_since: Option<f64>,
    /// The time of the last reading.
    read: f64,
}

impl Auto {
    /// Begins at `now` without knowing anything but, perhaps, a remembered rate.
    pub fn new(config: &ControllerConfig, now: Duration) -> Self {
        let rtt = config.rtt.as_secs_f64().max(1e-3);
        let now = now.as_secs_f64();
        let packets = if rtt > SLOW_RTT {
            train::PACKETS_SLOW
        } else {
            train::PACKETS
        };
        let first = packets as f64 * config.packet as f64 * 8.0 / rtt / 4.0;
        let stated = config.rate.stated().map(|rate| rate.max(1) as f64);
        Self {
            signal: Signal::new(config.packet, config.overhead, rtt),
            train: if config.remembered.is_none() && stated.is_none() {
                Train::of_packets(packets)
            } else {
                Train::none()
            },
            overhead: config.overhead,
            long: config.packet.max(1) as f64 * 8.0,
            phase: match stated {
                Some(_) => Phase::Stated { from: now },
                None => Phase::climb(0.0, now),
            },
            rate: stated.unwrap_or(config.remembered.map_or(first, |rate| rate as f64 / 2.0)),
            ceiling: stated.unwrap_or(f64::INFINITY),
            highest: VecDeque::new(),
            sent: 0,
            judging: None,
            queue_free_since: f64::INFINITY,
            queue_full_at: None,
            cruise_rounds: CRUISE_ROUNDS.0,
            overflowed: 0,
            link_loss: 0.0,
            sampled: 0,
            excess: 0.0,
            carried: 0.0,
            foreign: 0,
            window: Window::new(now, 2.0),
            trial_rounds: TRIAL_ROUNDS.0,
            trial_since: None,
            marked: 0,
            memory: PathMemory::default(),
            measured: stated.is_some(),
            used: false,
            less_since: None,
            read: now,
        }
    }

    /// How fast to send, in bits a second.
    pub fn rate(&self) -> u64 {
        if self.train.is_leaving() {
            return u64::MAX;
        }
        let rate = (self.rate * self.gain()).max(self.minimum());
        rate.min(self.ceiling).clamp(1.0, 1e12) as u64
    }

    /// What the link is thought to carry for us, in bits a second.
    pub fn link_rate(&self) -> u64 {
        self.rate.min(self.ceiling).clamp(1.0, 1e12) as u64
    }

    /// What reports and beacons may reckon with.
    pub fn safe_rate(&self) -> u64 {
        if self.ceiling.is_finite() {
            return self.ceiling.min(1e12) as u64;
        }
        let minimum = min_safe(self.signal.rtt());
        let guess = if minimum == SLOW_RATE {
            SLOW_RATE
        } else {
            GUESS_MAX
        };
        let rate = self.link_rate().max(minimum);
        if self.measured { rate } else { rate.min(guess) }
    }

    /// Whether we share the link with somebody who fills its queue.
    pub fn competes(&self) -> bool {
        matches!(self.phase, Phase::Compete { .. })
    }

    /// Says what the stated rate has turned out to be, if there is one.
    pub fn found(&self) -> Option<Found> {
        if !self.is_stated() {
            return None;
        }
        let lasts = |since: f64| self.read - since > LESS_TIME.max(LESS_ROUNDS * self.signal.rtt());
        Some(match self.less_since {
            Some(_) if self.competes() || self.trial_since.is_some() => Found::Shared,
            Some(since) if lasts(since) => Found::Less,
            _ if self.used => Found::Carried,
            _ => Found::Unused,
        })
    }

    /// What it does and why, for people.
    pub fn state(&self) -> String {
        format!(
            "rate {:.3} Mbit/s, queue {:.1} ms, RTT {:.1} ms, {:?}",
            self.rate / 1e6,
            self.signal.queue() * 1e3,
            self.signal.rtt_last() * 1e3,
            self.phase
        )
    }

    /// A packet has been sent.
    pub fn on_sent(&mut self, now: Duration) {
        self.sent += 1;
        self.train.on_sent(now.as_secs_f64());
    }

    /// The link is down: what is under way says nothing of its rate, which is remembered.
    pub fn on_outage(&mut self, now: Duration) {
        self.signal.cut();
        self.judging = None;
        self.queue_free_since = f64::INFINITY;
        let rtt = Duration::from_secs_f64(self.signal.rtt().min(1e6));
        self.memory
            .note(now, self.link_rate(), rtt, self.link_loss, 0);
    }

    /// The link is there again. At the rate that it had, if that was not too long ago; a queue slows us
    /// down as ever.
    pub fn on_resume(&mut self, now: Duration) {
        self.signal.cut();
        let rate = self.memory.rate_after_outage(now).unwrap_or(0) as f64;
        let rate = rate.max(self.minimum());
        let now = now.as_secs_f64();
        if matches!(self.phase, Phase::Stated { .. }) || rate < 0.9 * self.rate && self.is_stated()
        {
            self.send_as_stated(now);
        } else if rate < 0.9 * self.rate {
            self.highest.clear();
            self.rate = rate / 2.0;
            self.phase = Phase::climb(0.0, now);
        } else if !matches!(self.phase, Phase::Compete { .. } | Phase::Climb { .. }) {
            self.phase = Phase::Cruise { from: now };
        }
    }

    /// A report has come, and what was found lost since the last one.
    pub fn on_sample(&mut self, sample: &PathSample, losses: &[LossEvent]) {
        if let Some(rate) = self.train.note(sample, self.overhead) {
            self.rate = self.rate.max(TRAIN_SHARE / 2.0 * rate);
        }
        let flight = self.sent.saturating_sub(sample.sent_packets) as f64 * self.signal.packet();
        self.excess = flight - self.rate * self.signal.rtt();
        let lost = self.count(losses);
        self.note_link_loss(sample, lost.by_link);
        let span = self.span();
        let reading = self.signal.note(sample, lost.by_link, span);
        let marked = std::mem::replace(&mut self.marked, sample.marked) < sample.marked;
        let congested = lost.congested_at.max(marked.then_some(sample.sent_at));
        if let Some(sent_at) = congested {
            self.overflowed = self.overflowed.saturating_add(u64::from(marked));
            self.on_congestion(
                sample.now.as_secs_f64(),
                sent_at.as_secs_f64(),
                lost.congested,
            );
        }
        if let Some(reading) = reading {
            // What flows did not fill says nothing of a guess that is higher.
            self.measured |= !reading.app_limited || reading.carried > self.rate;
            self.on_reading(&reading);
        }
        // Absurd samples give absurd rates; one must be able to go on from them.
        let sane = self.rate.is_finite();
        self.rate = if sane { self.rate } else { 0.0 }.clamp(self.minimum().min(1e12), 1e12);
    }

    fn count(&self, losses: &[LossEvent]) -> Lost {
        let mut lost = Lost::default();
        let train = self.train.end();
        for event in losses {
            match event.cause {
                Cause::Link => lost.by_link = lost.by_link.saturating_add(event.packets),
                // The train makes a queue on purpose.
                Cause::Congestion if event.first >= train => {
                    lost.congested = lost.congested.saturating_add(event.packets);
                    lost.congested_at = lost.congested_at.max(Some(event.sent_at));
                }
                Cause::Congestion | Cause::Outage => {}
            }
        }
        lost
    }

    fn note_link_loss(&mut self, sample: &PathSample, lost: u64) {
        let sent = sample.sent_packets.saturating_sub(self.sampled) as f64;
        self.sampled = sample.sent_packets;
        let share = (lost as f64 / sent.max(1.0)).min(1.0);
        self.link_loss += (share - self.link_loss) * (sent / 1000.0).min(1.0);
    }

    /// Bits a second below which nothing could be measured: never more than a quarter of what is
    /// stated, so that a queue can drain.
    fn minimum(&self) -> f64 {
        let rtt = self.signal.rtt();
        // Packets of slow links are shortened.
        let packet = if rtt > SLOW_RTT {
            self.signal.packet().min(self.long)
        } else {
            self.long
        };
        (packet / rtt.max(PACKET_TIME_MAX)).min(self.ceiling / 4.0)
    }

    fn gain(&self) -> f64 {
        match self.phase {
            Phase::Climb { .. } => 2.0,
            Phase::Drain { gain, .. } => gain,
            Phase::Stated { .. } | Phase::Cruise { .. } | Phase::Compete { .. } => 1.0,
            Phase::Pulse { .. } => self.pulse_gain(),
        }
    }

    fn pulse_gain(&self) -> f64 {
        let gain = if self.rate * self.signal.rtt() < PULSE_PACKETS * self.signal.packet() {
            PULSE_COARSE
        } else {
            PULSE
        };
        gain.min(self.ceiling / self.rate).max(1.0)
    }

    /// Tells whether a rate has been stated.
    fn is_stated(&self) -> bool {
        self.ceiling.is_finite()
    }

    /// From now on as fast as has been stated.
    fn send_as_stated(&mut self, now: f64) {
        self.highest.clear();
        self.judging = None;
        self.rate = self.ceiling;
        self.less_since = None;
        self.queue_free_since = now;
        self.overflowed = 0;
        self.phase = Phase::Stated { from: now };
    }

    /// A packet's time at the link's rate.
    fn packet_time(&self) -> f64 {
        self.signal.packet() / self.rate.max(self.minimum())
    }

    /// The time over which rates are measured: half a round trip, but never less than 8 packets.
    fn span(&self) -> f64 {
        (self.signal.rtt() / 2.0).max(8.0 * self.packet_time())
    }

    /// A queue that is none.
    fn queue_low(&self) -> f64 {
        (self.signal.rtt() / 16.0 + 1e-3).max(1.5 * self.packet_time())
    }

    /// A queue that has begun to grow.
    fn queue_rise(&self) -> f64 {
        (self.signal.rtt() / 8.0)
            .max(2e-3)
            .max(3.0 * self.packet_time())
    }

    /// A queue that must go.
    fn queue_high(&self) -> f64 {
        (self.signal.rtt() * 0.3)
            .max(5e-3)
            .max(4.0 * self.packet_time())
    }

    fn on_congestion(&mut self, now: f64, sent_at: f64, packets: u64) {
        match self.phase {
            Phase::Climb { .. } if self.signal.queue() > self.queue_rise() => {
                // Right behind the train nothing else is known: its rate stays.
                if self.measured {
                    self.rate = self.best().max(self.carried);
                }
                self.drain(now, self.signal.queue());
            }
            Phase::Compete { .. } => {
                let rtt = self.signal.rtt_last();
                self.window.congestion(now, sent_at, rtt);
            }
            Phase::Cruise { .. } | Phase::Drain { .. }
                if sent_at > self.queue_free_since && self.signal.queue() > self.queue_rise() =>
            {
                self.on_strange_congestion(now);
            }
            Phase::Stated { .. }
                if sent_at > self.queue_free_since && self.signal.queue() > self.queue_rise() =>
            {
                self.overflowed = self.overflowed.saturating_add(packets);
            }
            Phase::Cruise { .. } | Phase::Drain { .. } | Phase::Pulse { .. } => {
                self.overflowed = self.overflowed.saturating_add(packets);
            }
            Phase::Climb { .. } | Phase::Stated { .. } => {}
        }
    }

    /// We sent less than the link carries, and yet its queue was full: it carries less now, or we are not alone.
    fn on_strange_congestion(&mut self, now: f64) {
        let again = self
            .queue_full_at
            .is_some_and(|at| now - at < QUEUE_FULL_ROUNDS * self.signal.rtt());
        if again || self.trial_since.is_some() {
            return self.compete(now, true);
        }
        self.queue_full_at = Some(now);
        self.believe(now, self.carried);
        self.drain(now, self.signal.queue());
        self.queue_free_since = now;
    }
}
