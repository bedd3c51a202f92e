//! The rate of a link whose rate nobody has stated.

mod signal;
mod train;
mod window;

use std::{collections::VecDeque, time::Duration};

use self::{
    signal::{Reading, Signal},
    train::Train,
    window::Window,
};
use super::ControllerConfig;
use crate::{
    cause::{Cause, LossEvent},
    path::PathSample,
};

/// Round trips for which the highest rate is believed.
const KEEP_ROUNDS: f64 = 10.0;
/// Round trips between two pulses, beside what they take themselves.
const CRUISE_ROUNDS: (f64, f64) = (2.0, 32.0);
/// How much a pulse adds.
const PULSE: f64 = 1.25;
/// Where a round trip is fewer packets than this, a pulse adds more, or it could not be seen.
const PULSE_PACKETS: f64 = 10.0;
const PULSE_COARSE: f64 = 1.5;
/// Of the train's spread.
const TRAIN_SHARE: f64 = 0.8;
/// The share of the link that we have, below which somebody else's queue is assumed.
const SHARE_ALONE: f64 = 0.7;
/// Round trips in company before we look whether we still are.
const TRIAL_ROUNDS: (f64, f64) = (60.0, 480.0);
/// Round trips after which meeting a full queue once is forgotten.
const STRUCK_ROUNDS: f64 = 100.0;
/// The least rate, in packets a round trip.
const PACKETS_MIN: f64 = 1.0;

/// What is being done. See docs/tunnel.md for the drawing.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
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

/// Measures the rate: sends a train, climbs, and then sends faster for a moment now and then.
#[derive(Clone, Debug)]
pub struct Auto {
    signal: Signal,
    train: Train,
    overhead: u64,
    phase: Phase,
    /// Bits a second that the link is thought to carry.
    rate: f64,
    highest: VecDeque<(f64, f64)>,
    sent: u64,
    /// A pulse whose outcome is not known: when it began and ended, the rate before it, whether there was no
    /// queue before it.
    judging: Option<(f64, f64, f64, bool)>,
    /// What has been sent since then cannot have filled a queue that only we use.
    calm_since: f64,
    /// When something sent in calm met a full queue: the rate may have been out of date, once.
    struck: Option<f64>,
    /// Round trips from one pulse to the next: more of them where pulses make the queue overflow.
    cruise_rounds: f64,
    /// Whether the last pulse did.
    overflowed: bool,
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
}

impl Auto {
    /// Begins at `now` without knowing anything but, perhaps, a remembered rate.
    pub fn new(config: &ControllerConfig, now: Duration) -> Self {
        let rtt = config.rtt.as_secs_f64().max(1e-3);
        let now = now.as_secs_f64();
        let first = train::PACKETS as f64 * config.packet as f64 * 8.0 / rtt / 4.0;
        Self {
            signal: Signal::new(config.packet, config.overhead, rtt),
            train: Train::new(config.remembered.is_none()),
            overhead: config.overhead,
            phase: Phase::Climb {
                best: 0.0,
                flat: 0,
                round_end: now,
            },
            rate: config.remembered.map_or(first, |rate| rate as f64 / 2.0),
            highest: VecDeque::new(),
            sent: 0,
            judging: None,
            calm_since: f64::INFINITY,
            struck: None,
            cruise_rounds: CRUISE_ROUNDS.0,
            overflowed: false,
            excess: 0.0,
            carried: 0.0,
            foreign: 0,
            window: Window::new(now, 2.0),
            trial_rounds: TRIAL_ROUNDS.0,
            trial_since: None,
            marked: 0,
        }
    }

    /// How fast to send, in bits a second.
    pub fn rate(&self) -> u64 {
        if self.train.is_leaving() {
            return u64::MAX;
        }
        (self.rate * self.gain()).max(self.least()).min(1e12) as u64
    }

    /// What the link is thought to carry for us, in bits a second.
    pub fn link_rate(&self) -> u64 {
        self.rate.clamp(1.0, 1e12) as u64
    }

    /// Whether we share the link with somebody who fills its queue.
    pub fn competes(&self) -> bool {
        matches!(self.phase, Phase::Compete { .. })
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

    /// The link is down: what is under way says nothing of its rate.
    pub fn on_outage(&mut self) {
        self.signal.cut();
        self.judging = None;
        self.calm_since = f64::INFINITY;
    }

    /// The link is there again. At the rate that it had; a queue slows us down as ever.
    pub fn on_resume(&mut self, now: Duration) {
        self.signal.cut();
        let now = now.as_secs_f64();
        if !matches!(self.phase, Phase::Compete { .. } | Phase::Climb { .. }) {
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
        let by_link = |event: &&LossEvent| event.cause == Cause::Link;
        let by_link = losses.iter().filter(by_link).map(|e| e.packets).sum();
        let span = self.span();
        let reading = self.signal.note(sample, by_link, span);
        let congested = losses
            .iter()
            .filter(|e| e.cause == Cause::Congestion && e.first >= self.train.end());
        let congested = congested.map(|event| event.sent_at).max();
        let marked = std::mem::replace(&mut self.marked, sample.marked) < sample.marked;
        let congested = congested.max(marked.then_some(sample.sent_at));
        if let Some(sent_at) = congested {
            self.on_congestion(sample.now.as_secs_f64(), sent_at.as_secs_f64());
        }
        if let Some(reading) = reading {
            self.on_reading(&reading);
        }
    }

    /// Bits a second below which nothing could be measured.
    fn least(&self) -> f64 {
        PACKETS_MIN * self.signal.packet() / self.signal.rtt()
    }

    fn gain(&self) -> f64 {
        match self.phase {
            Phase::Climb { .. } => 2.0,
            Phase::Drain { gain, .. } => gain,
            Phase::Cruise { .. } | Phase::Compete { .. } => 1.0,
            Phase::Pulse { .. } => self.pulse_gain(),
        }
    }

    fn pulse_gain(&self) -> f64 {
        if self.rate * self.signal.rtt() < PULSE_PACKETS * self.signal.packet() {
            PULSE_COARSE
        } else {
            PULSE
        }
    }

    /// A packet's time at the link's rate.
    fn packet_time(&self) -> f64 {
        self.signal.packet() / self.rate.max(self.least())
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

    fn on_congestion(&mut self, now: f64, sent_at: f64) {
        match self.phase {
            Phase::Climb { .. } if self.signal.queue() > self.queue_rise() => {
                self.rate = self.best().max(self.carried);
                self.drain(now, self.signal.queue());
            }
            Phase::Compete { .. } => {
                self.window.congestion(now, sent_at);
            }
            Phase::Cruise { .. } | Phase::Drain { .. } if sent_at > self.calm_since => {
                self.on_strange_congestion(now);
            }
            Phase::Cruise { .. } | Phase::Drain { .. } | Phase::Pulse { .. } => {
                self.overflowed = true;
            }
            Phase::Climb { .. } => {}
        }
    }

    /// We sent less than the link carries, and yet its queue was full: it carries less now, or we are not alone.
    fn on_strange_congestion(&mut self, now: f64) {
        let again = self
            .struck
            .is_some_and(|at| now - at < STRUCK_ROUNDS * self.signal.rtt());
        if again || self.trial_since.is_some() {
            return self.compete(now, true);
        }
        self.struck = Some(now);
        self.believe(now, self.carried);
        self.drain(now, self.signal.queue());
        self.calm_since = now;
    }

    fn on_reading(&mut self, reading: &Reading) {
        self.carried = reading.carried;
        self.remember(reading);
        self.judge_pulse(reading);
        if self.is_out_of_date(reading) {
            self.believe(reading.now, reading.carried);
            return self.drain(reading.now, reading.queue);
        }
        match self.phase {
            Phase::Climb { .. } => self.climb(reading),
            Phase::Drain { .. } => self.drained(reading),
            Phase::Cruise { from } => self.cruise(reading, from),
            Phase::Pulse { from, rate, idle } => self.pulse(reading, from, rate, idle),
            Phase::Compete { trial_at } => self.keep_up(reading, trial_at),
        }
    }

    /// Whether much less arrives than is sent while a long queue stands, though we are not draining yet from
    /// about that rate.
    fn is_out_of_date(&self, reading: &Reading) -> bool {
        let free = !matches!(self.phase, Phase::Climb { .. } | Phase::Compete { .. });
        let less = reading.carried < 0.8 * reading.sent && reading.carried < 0.8 * self.rate;
        free && less && reading.queue > self.queue_high()
    }

    /// Keeps the highest rates of the last round trips; what was limited by the flows only raises.
    fn remember(&mut self, reading: &Reading) {
        if matches!(self.phase, Phase::Compete { .. }) {
            return;
        }
        if reading.app_limited && reading.carried <= self.rate {
            return;
        }
        let keep = KEEP_ROUNDS * self.signal.rtt().max(self.span());
        self.highest.push_back((reading.now, reading.carried));
        while self
            .highest
            .front()
            .is_some_and(|first| first.0 + keep < reading.now)
            || self.highest.len() > 512
        {
            self.highest.pop_front();
        }
        let best = self
            .highest
            .iter()
            .map(|sample| sample.1)
            .fold(0.0, f64::max);
        let climbing = matches!(self.phase, Phase::Climb { .. });
        self.rate = if climbing { self.rate.max(best) } else { best };
    }

    fn best(&self) -> f64 {
        self.highest
            .iter()
            .map(|sample| sample.1)
            .fold(0.0, f64::max)
    }

    /// What was believed is out of date.
    fn believe(&mut self, now: f64, rate: f64) {
        // Nothing is measured yet, or it is absurd.
        let rate = rate.max(self.rate / 8.0).max(self.least());
        self.highest.clear();
        self.highest.push_back((now, rate));
        self.rate = rate;
    }

    fn climb(&mut self, reading: &Reading) {
        let Phase::Climb {
            best,
            flat,
            round_end,
        } = self.phase
        else {
            return;
        };
        if reading.queue > self.queue_rise() {
            let best = self
                .highest
                .iter()
                .map(|sample| sample.1)
                .fold(0.0, f64::max);
            self.rate = best.max(reading.carried);
            return self.drain(reading.now, reading.queue);
        }
        if reading.now < round_end {
            return;
        }
        let grown = reading.carried > best * 1.2 || reading.app_limited;
        let flat = if grown { 0 } else { flat + 1 };
        self.phase = Phase::Climb {
            best: best.max(reading.carried),
            flat,
            round_end: reading.now + self.signal.rtt(),
        };
        if flat >= 3 {
            let best = self
                .highest
                .iter()
                .map(|sample| sample.1)
                .fold(0.0, f64::max);
            self.rate = best.max(reading.carried);
            self.drain(reading.now, reading.queue);
        }
    }

    /// How much slower than the link to send, so that a queue of so many seconds goes away.
    fn drain_gain(&self, queue: f64) -> f64 {
        match queue / self.signal.rtt() {
            deep if deep > 1.0 => (4.0 * self.least() / self.rate).clamp(0.1, 0.5),
            long if long > 0.3 => 0.5,
            _ => 0.75,
        }
    }

    fn drain(&mut self, now: f64, queue: f64) {
        let gain = self.drain_gain(queue);
        // Its first part still finds the queue that we made.
        self.calm_since = now + self.signal.rtt() / 2.0 + queue;
        self.phase = Phase::Drain {
            gain,
            from: now,
            rate: self.rate,
        };
    }

    fn drained(&mut self, reading: &Reading) {
        let Phase::Drain { gain, from, rate } = self.phase else {
            return;
        };
        // What is in flight shows what will be queued before it can be seen.
        let deeper = self.drain_gain(self.excess / self.rate).min(gain);
        self.phase = Phase::Drain {
            gain: deeper,
            from,
            rate,
        };
        // Alone, what arrives does not fall as long as a queue stands, however slowly we send.
        let stands = reading.span_from >= from && reading.queue_least > self.queue_rise();
        if stands && reading.sent < 0.9 * rate && share(rate, reading) < SHARE_ALONE {
            return self.compete(reading.now, false);
        }
        let slack = (self.rate * self.signal.rtt() / 32.0).max(1.5 * self.signal.packet());
        if self.excess <= slack {
            self.calm_since = self.calm_since.min(reading.now);
            self.phase = Phase::Cruise { from: reading.now };
        }
    }

    fn cruise(&mut self, reading: &Reading, from: f64) {
        // Only what was sent since then says how it went.
        if reading.sent_at < from {
            return;
        }
        if reading.queue < self.queue_low() {
            self.foreign = 0;
        }
        self.end_trial(reading);
        if reading.span_from >= from && reading.queue_least > self.queue_high() {
            return self.queue_stands(reading);
        }
        let wait = self.cruise_rounds * self.signal.rtt().max(self.span() / 2.0);
        if reading.now - from > wait + self.signal.rtt() && self.judging.is_none() {
            let idle = reading.queue_least < self.queue_low();
            self.phase = Phase::Pulse {
                from: reading.now,
                rate: self.rate,
                idle,
            };
            self.calm_since = f64::INFINITY;
        }
    }

    /// We sent no more than the link is thought to carry, and yet there is a queue.
    fn queue_stands(&mut self, reading: &Reading) {
        self.foreign += 1;
        if self.foreign > 2 {
            return self.compete(reading.now, false);
        }
        self.believe(reading.now, reading.carried);
        self.drain(reading.now, reading.queue);
    }

    fn pulse(&mut self, reading: &Reading, from: f64, rate: f64, idle: bool) {
        let long = self.signal.rtt().max(1.25 * self.span());
        let seen = reading.sent_at >= from && reading.queue > self.queue_rise();
        if reading.now - from >= long || seen {
            self.judging = Some((from, reading.now, rate, idle));
            self.drain(reading.now, 0.0);
        }
    }

    /// A pulse that arrived as fast as it was sent found room.
    fn judge_pulse(&mut self, reading: &Reading) {
        let Some((from, until, rate, idle)) = self.judging else {
            return;
        };
        if matches!(self.phase, Phase::Climb { .. } | Phase::Compete { .. }) {
            self.judging = None;
            return;
        }
        let within = reading.span_from >= from && reading.sent_at <= until;
        let more = 1.0 + 0.6 * (self.pulse_gain() - 1.0);
        if within && idle && reading.carried > more * rate && reading.queue < self.queue_rise() {
            self.judging = None;
            self.phase = Phase::Climb {
                best: reading.carried,
                flat: 0,
                round_end: reading.now + self.signal.rtt(),
            };
        } else if reading.sent_at > until + self.span() {
            self.judging = None;
            let factor = if std::mem::take(&mut self.overflowed) {
                2.0
            } else {
                0.5
            };
            self.cruise_rounds =
                (self.cruise_rounds * factor).clamp(CRUISE_ROUNDS.0, CRUISE_ROUNDS.1);
            if !idle {
                // There was a queue: what we gained was another's.
                self.highest
                    .iter_mut()
                    .for_each(|sample| sample.1 = sample.1.min(rate * 1.02));
            }
        }
    }

    fn compete(&mut self, now: f64, congested: bool) {
        let rtt = self.signal.rtt_last();
        let was = self.trial_since.take();
        if was.is_some() {
            self.trial_rounds = (self.trial_rounds * 2.0).min(TRIAL_ROUNDS.1);
            self.window.resume(now);
        } else {
            self.trial_rounds = TRIAL_ROUNDS.0;
            self.window = Window::new(
                now,
                self.carried.min(self.rate) * rtt / self.signal.packet(),
            );
        }
        if congested {
            self.window.congestion(now, now);
        }
        self.foreign = 0;
        self.judging = None;
        self.phase = Phase::Compete {
            trial_at: now + self.trial_rounds * self.signal.rtt(),
        };
    }

    fn keep_up(&mut self, reading: &Reading, trial_at: f64) {
        let rtt = self.signal.rtt_last();
        if !reading.app_limited {
            self.window.grow(reading.now, rtt);
        }
        self.rate = self.window.packets * self.signal.packet() / rtt;
        if reading.now >= trial_at {
            self.trial_since = Some(reading.now);
            self.believe(reading.now, reading.carried);
            self.drain(
                reading.now,
                reading
                    .queue
                    .max(0.31 * self.signal.rtt())
                    .min(self.signal.rtt()),
            );
        }
    }

    /// Half a minute of round trips without anybody's queue: we are alone.
    fn end_trial(&mut self, reading: &Reading) {
        if self
            .trial_since
            .is_some_and(|since| reading.now - since > 60.0 * self.signal.rtt())
        {
            self.trial_since = None;
        }
    }
}

/// Our share of what goes through a queue that stands: we sent at `before` and it all arrived; now less is
/// sent, and less arrives if others take our place. Bits a second in, 0 to 1 out.
fn share(before: f64, reading: &Reading) -> f64 {
    let (sent, carried) = (reading.sent, reading.carried);
    if carried <= sent {
        return 0.0;
    }
    let others = (sent * (before - carried) / (carried - sent)).max(0.0);
    before / (before + others)
}
