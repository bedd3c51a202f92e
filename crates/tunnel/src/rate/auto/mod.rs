//! Measured rate of a link, optionally capped at a stated rate.

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

/// Round trips for which the highest measured rate is kept.
const KEEP_ROUNDS: f64 = 10.0;
/// Round trips between two probing pulses, in addition to the pulses' length.
const CRUISE_ROUNDS: (f64, f64) = (2.0, 32.0);
/// Factor of a pulse on the rate.
const PULSE: f64 = 1.25;
/// Minimum length of a pulse in packets. Where a round trip is shorter, a pulse takes several round
/// trips.
const PULSE_PACKETS: f64 = 10.0;
/// Factor of such a pulse: adds two packets to ten, the smallest queue that shows.
const PULSE_COARSE: f64 = 1.2;
/// Data in flight beyond the bandwidth-delay product at which a drain ends, as a part of a round
/// trip and in packets (the larger applies).
const DRAINED: (f64, f64) = (1.0 / 32.0, 0.5);
/// Fraction of the rate indicated by the train's spread.
const TRAIN_SHARE: f64 = 0.8;
/// Share of the link below which a competing queue is assumed.
const SHARE_ALONE: f64 = 0.7;
/// Share of the estimate that must be sent, or of what is sent that may be carried, for a reading
/// to lower the estimate.
const TESTS: f64 = 0.9;
/// Share of packets lost at which a climb ends: it has doubled the rate beyond the link's.
const CLIMB_LOST: f64 = 0.4;
/// Round trips of competing before a trial of being alone.
const TRIAL_ROUNDS: (f64, f64) = (120.0, 960.0);
/// Round trips after which a single encounter of a full queue is forgotten.
const QUEUE_FULL_ROUNDS: f64 = 100.0;
/// Minimum rate: one long packet in this time in seconds, or in a round trip if that is longer. On
/// a slow link, a packet may take many round trips.
const PACKET_TIME_MAX: f64 = 1.0;
/// Minimum rate assumed for reports and beacons in bits per second: a beacon per second. Otherwise
/// a rate measured too low, with little traffic, would silence both ends.
const SAFE_MIN: u64 = 80_000;
/// Maximum rate assumed while nothing has been measured.
const GUESS_MAX: u64 = 200_000;
/// Round trip time in seconds above which the link may be a radio with a long interleaver, as slow
/// as [`SLOW_RATE`].
const SLOW_RTT: f64 = 2.5;
/// Replaces [`SAFE_MIN`] and [`GUESS_MAX`] on such links, in bits per second: 80 kbit/s of beacons
/// would fill them. Rate of the preset `hf`.
const SLOW_RATE: u64 = 2400;

/// Returns the minimum rate in bits per second assumed for reports when the rate is measured, at
/// this round trip time.
pub fn min_safe_rate(rtt: Duration) -> u64 {
    min_safe(rtt.as_secs_f64())
}

fn min_safe(rtt: f64) -> u64 {
    if rtt > SLOW_RTT { SLOW_RATE } else { SAFE_MIN }
}

/// Fraction of the stated rate that counts as reached: measurements are no more precise.
const AS_STATED: f64 = 0.96;
/// Share of the stated rate above which the session contributes to a standing queue.
const OURS: f64 = 0.5;
/// Fraction of a round trip's packets that may meet a full queue within two round trips.
const OVERFLOW: f64 = 0.02;

/// Phase of the measurement; docs/protocol.md has the state diagram.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Sends at the stated rate; packets sent before `from` are not evaluated.
    Stated { from: f64 },
    /// Doubles the rate every round trip, until a queue is seen.
    Climb {
        best: f64,
        flat: u32,
        round_end: f64,
    },
    /// Sends slower than the link until no more is in flight than it carries.
    Drain { gain: f64, from: f64, rate: f64 },
    /// Sends as fast as the link; packets sent before `from` are not evaluated.
    Cruise { from: f64 },
    /// Sends a little faster than the link.
    Pulse { from: f64, rate: f64, idle: bool },
    /// Uses a congestion window, like the flows that share the queue.
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

/// Minimum time at a lower rate before the link counts as slower than stated, in round trips and
/// seconds. Bursts of other traffic are shorter.
const LESS_ROUNDS: f64 = 10.0;
const LESS_TIME: f64 = 5.0;

/// Packets found lost since the last sample.
#[derive(Clone, Copy, Debug, Default)]
struct Lost {
    by_link: u64,
    congested: u64,
    /// Send time of the last packet lost in congestion.
    congested_at: Option<Duration>,
}

/// Rate measurement: sends a train, climbs, and then probes with short pulses now and then.
#[derive(Clone, Debug)]
pub struct Auto {
    signal: Signal,
    train: Train,
    overhead: u64,
    /// Bits of a long packet, at the beginning.
    long: f64,
    phase: Phase,
    /// Estimated capacity in bits per second.
    rate: f64,
    /// Stated rate; infinite if there is none.
    ceiling: f64,
    highest: VecDeque<(f64, f64)>,
    sent: u64,
    /// Pulse under evaluation: begin, end, rate before it, and whether the queue was empty before
    /// it.
    judging: Option<(f64, f64, f64, bool)>,
    /// Packets sent since then cannot have filled a queue of this session alone.
    queue_free_since: f64,
    /// Time at which a packet sent without pulse met a full queue: a single case may mean that the
    /// rate was out of date.
    queue_full_at: Option<f64>,
    /// Round trips between pulses; more where pulses make the queue overflow.
    cruise_rounds: f64,
    /// Packets of the last pulse that apparently met a full queue.
    overflowed: u64,
    /// Share of packets that the link loses, smoothed.
    link_loss: f64,
    /// Packets sent, as of the last sample.
    sampled: u64,
    /// Bits in flight beyond the bandwidth-delay product.
    excess: f64,
    /// Carried rate of the last reading, in bits per second.
    carried: f64,
    /// Consecutive drains that left a queue.
    undrained: u32,
    window: Window,
    trial_rounds: f64,
    /// Start of the current trial of being alone on the link.
    trial_since: Option<f64>,
    marked: u64,
    /// Path memory as of the last outage.
    memory: PathMemory,
    /// True once the rate has been measured, not guessed.
    measured: bool,
    /// True once the stated rate has been fully used.
    used: bool,
    /// Time since which less than stated has been carried.
    less_since: Option<f64>,
    /// Time of the last reading.
    read: f64,
}

impl Auto {
    /// Returns true while packets of the train or of a pulse leave.
    pub fn is_in_burst(&self) -> bool {
        self.train.is_leaving() || matches!(self.phase, Phase::Pulse { .. })
    }

    /// Creates a measurement that begins at `now`, optionally with a remembered rate.
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
            undrained: 0,
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

    /// Returns the sending rate in bits per second.
    pub fn rate(&self) -> u64 {
        if self.train.is_leaving() {
            return u64::MAX;
        }
        let rate = (self.rate * self.gain()).max(self.minimum());
        rate.min(self.ceiling).clamp(1.0, 1e12) as u64
    }

    /// Returns the estimated capacity for this session, in bits per second.
    pub fn link_rate(&self) -> u64 {
        self.rate.min(self.ceiling).clamp(1.0, 1e12) as u64
    }

    /// Returns the rate on which reports and beacons are based.
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

    /// Returns true if other traffic fills the queue of a shared link.
    pub fn competes(&self) -> bool {
        matches!(self.phase, Phase::Compete { .. })
    }

    /// Returns the check of the stated rate, if there is one.
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

    /// Returns a description of the current state, for people.
    pub fn state(&self) -> String {
        format!(
            "rate {:.3} Mbit/s, queue {:.1} ms, RTT {:.1} ms, {:?}",
            self.rate / 1e6,
            self.signal.queue() * 1e3,
            self.signal.rtt_last() * 1e3,
            self.phase
        )
    }

    /// Records that a packet is sent.
    pub fn on_sent(&mut self, now: Duration) {
        self.sent += 1;
        self.train.on_sent(now.as_secs_f64());
    }

    /// Handles an outage: packets in flight say nothing of the rate, which is remembered.
    pub fn on_outage(&mut self, now: Duration) {
        self.signal.cut();
        self.judging = None;
        self.queue_free_since = f64::INFINITY;
        let rtt = Duration::from_secs_f64(self.signal.rtt().min(1e6));
        self.memory
            .note(now, self.link_rate(), rtt, self.link_loss, 0);
    }

    /// Handles the end of an outage. Resumes at the previous rate if the outage was short enough;
    /// queues reduce the rate as before.
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

    /// Handles a report, and the losses found since the last one.
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
            // An application-limited reading does not confirm a higher guess.
            self.measured |= !reading.app_limited || reading.carried > self.rate;
            self.on_reading(&reading);
        }
        // Absurd samples give absurd rates; recover from them.
        let sane = self.rate.is_finite();
        self.rate = if sane { self.rate } else { 0.0 }.clamp(self.minimum().min(1e12), 1e12);
    }

    fn count(&self, losses: &[LossEvent]) -> Lost {
        let mut lost = Lost::default();
        let train = self.train.end();
        for event in losses {
            match event.cause {
                Cause::Link => lost.by_link = lost.by_link.saturating_add(event.packets),
                // The train causes a queue on purpose.
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

    /// Returns the minimum rate in bits per second for a measurement; at most a quarter of the
    /// stated rate, so that a queue can drain.
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

    /// Returns true if a rate has been stated.
    fn is_stated(&self) -> bool {
        self.ceiling.is_finite()
    }

    /// Switches to the stated rate.
    fn send_as_stated(&mut self, now: f64) {
        self.highest.clear();
        self.judging = None;
        self.rate = self.ceiling;
        self.less_since = None;
        self.queue_free_since = now;
        self.overflowed = 0;
        self.phase = Phase::Stated { from: now };
    }

    /// Returns the time of a packet at the link's rate.
    fn packet_time(&self) -> f64 {
        self.signal.packet() / self.rate.max(self.minimum())
    }

    /// Returns the time over which rates are measured: half a round trip, but 8 packets or more.
    fn span(&self) -> f64 {
        (self.signal.rtt() / 2.0)
            .max(8.0 * self.packet_time())
            .max(4.0 * self.signal.jitter())
    }

    /// Returns the delay below which a queue counts as empty.
    fn queue_low(&self) -> f64 {
        (self.signal.rtt() / 16.0 + 1e-3)
            .max(1.5 * self.packet_time())
            .max(self.signal.jitter())
    }

    /// Returns the delay above which a queue has begun to grow.
    fn queue_rise(&self) -> f64 {
        (self.signal.rtt() / 8.0)
            .max(2e-3)
            .max(3.0 * self.packet_time())
            .max(2.0 * self.signal.jitter())
    }

    /// Returns the delay above which a queue must be drained.
    fn queue_high(&self) -> f64 {
        (self.signal.rtt() * 0.3)
            .max(5e-3)
            .max(4.0 * self.packet_time())
            .max(3.0 * self.signal.jitter())
    }

    fn on_congestion(&mut self, now: f64, sent_at: f64, packets: u64) {
        match self.phase {
            Phase::Climb { .. } if self.signal.queue() > self.queue_rise() => {
                // Right after the train nothing else is known: keep its rate.
                if self.measured {
                    self.rate = self.best().max(self.carried);
                }
                self.drain(now, self.signal.queue());
            }
            Phase::Compete { .. } => {
                let rtt = self.signal.rtt_recent();
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

    /// Handles congestion although the session sent less than the link carries. Either the link
    /// carries less now, or other traffic shares it.
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
