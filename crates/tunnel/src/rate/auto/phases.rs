//! Processing of readings: transitions between phases.

use super::{
    AS_STATED, Auto, CLIMB_LOST, CRUISE_ROUNDS, DRAINED, KEEP_ROUNDS, OURS, OVERFLOW, Phase,
    SHARE_ALONE, TESTS, TRAIN_SHARE, TRIAL_ROUNDS,
    signal::{LOST_MAX, Reading},
    window::Window,
};

impl Auto {
    pub(super) fn on_reading(&mut self, reading: &Reading) {
        (self.carried, self.read) = (self.supported(reading), reading.now);
        if self.is_stated() && !matches!(self.phase, Phase::Stated { .. }) {
            self.less_since.get_or_insert(reading.now);
        }
        self.remember(reading);
        self.judge_pulse(reading);
        if self.is_out_of_date(reading) {
            self.believe(reading.now, reading.carried);
            return self.drain(reading.now, reading.queue);
        }
        match self.phase {
            Phase::Stated { from } => self.stated(reading, from),
            Phase::Climb { .. } => self.climb(reading),
            Phase::Drain { .. } => self.drained(reading),
            Phase::Cruise { from } => self.cruise(reading, from),
            Phase::Pulse { from, rate, idle } => self.probe_pulse(reading, from, rate, idle),
            Phase::Compete { trial_at } => self.keep_up(reading, trial_at),
        }
    }

    /// Returns true if much less arrives than is sent while a long queue stands, unless a drain
    /// from about that rate is in progress.
    fn is_out_of_date(&self, reading: &Reading) -> bool {
        let free = match self.phase {
            Phase::Climb { .. } | Phase::Compete { .. } => false,
            Phase::Stated { from } => reading.span_from >= from,
            Phase::Drain { .. } | Phase::Cruise { .. } | Phase::Pulse { .. } => true,
        };
        let less = reading.carried < 0.8 * reading.sent && reading.carried < 0.8 * self.rate;
        free && less && reading.queue_min > self.queue_high()
    }

    /// Keeps the highest rates of the last round trips. Readings that do not test the link can only
    /// raise them.
    fn remember(&mut self, reading: &Reading) {
        if matches!(self.phase, Phase::Compete { .. } | Phase::Stated { .. }) {
            return;
        }
        if !self.tests_the_link(reading) && reading.carried <= self.rate {
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
        let best = self.best();
        let climbing = matches!(self.phase, Phase::Climb { .. });
        self.rate = if climbing { self.rate.max(best) } else { best };
    }

    /// Returns true if a lower rate in the reading can be the link's. Applications, or a machine
    /// that is late, may have sent less than it carries.
    fn tests_the_link(&self, reading: &Reading) -> bool {
        let full = reading.sent > TESTS * self.rate;
        let stands = reading.queue_min > self.queue_low() || reading.lost > LOST_MAX;
        let slowed = reading.carried < TESTS * reading.sent && stands;
        !reading.app_limited && (full || slowed)
    }

    /// Returns the rate that the reading allows to assume.
    fn supported(&self, reading: &Reading) -> f64 {
        if self.tests_the_link(reading) {
            reading.carried
        } else {
            reading.carried.max(self.rate)
        }
    }

    pub(super) fn best(&self) -> f64 {
        self.highest
            .iter()
            .map(|sample| sample.1)
            .fold(0.0, f64::max)
    }

    /// Replaces an outdated rate.
    pub(super) fn believe(&mut self, now: f64, rate: f64) {
        // Nothing is measured yet, or the value is absurd.
        let rate = rate.max(self.rate / 8.0).max(self.minimum());
        self.highest.clear();
        self.highest.push_back((now, rate));
        self.rate = rate;
    }

    /// Continues at the stated rate until the session's own queue stands or overflows.
    fn stated(&mut self, reading: &Reading, from: f64) {
        if reading.span_from < from {
            return;
        }
        if reading.queue < self.queue_low() {
            self.undrained = 0;
        }
        self.end_trial(reading);
        self.used |= !reading.app_limited && reading.carried >= AS_STATED * self.ceiling;
        // Beside a queue of others, a low-rate sender changes nothing.
        let ours = reading.sent > OURS * self.ceiling || reading.carried < 0.9 * reading.sent;
        let stands = reading.queue_min > self.queue_high();
        if ours && (stands || self.overflows()) {
            return self.queue_stands(reading);
        }
        if reading.now - self.queue_free_since > 2.0 * self.signal.rtt() {
            (self.queue_free_since, self.overflowed) = (reading.now, 0);
        }
    }

    /// Returns true if many packets sent at the stated rate meet a full queue.
    fn overflows(&self) -> bool {
        let round = self.ceiling * self.signal.rtt() / self.signal.packet();
        self.overflowed as f64 > 2.0 + OVERFLOW * round
    }

    /// Returns true if the link carries the stated rate, as far as measurable.
    fn carries_stated(&self) -> bool {
        self.is_stated() && self.rate >= AS_STATED * self.ceiling
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
            // Application-limited spans understate the rate. The queue may be the train's.
            let minimum = if reading.app_limited {
                (TRAIN_SHARE * self.train.indicated()).max(self.rate)
            } else {
                0.0
            };
            self.rate = self.best().max(reading.carried).max(minimum);
            return self.drain(reading.now, reading.queue);
        }
        if reading.lost > CLIMB_LOST {
            self.rate = self.best().min(2.0 * reading.carried);
            self.highest.clear();
            return self.drain(reading.now, reading.queue);
        }
        if self.carries_stated() && reading.carried >= AS_STATED * self.ceiling {
            return self.send_as_stated(reading.now);
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
            self.rate = self.best().max(reading.carried);
            self.drain(reading.now, reading.queue);
        }
    }

    /// Returns the gain relative to the link's rate that drains a queue of this many seconds.
    fn drain_gain(&self, queue: f64) -> f64 {
        match queue / self.signal.rtt() {
            deep if deep > 1.0 => {
                (4.0 * self.signal.packet() / self.signal.rtt() / self.rate).clamp(0.1, 0.5)
            }
            long if long > 0.3 => 0.5,
            _ => 0.75,
        }
    }

    pub(super) fn drain(&mut self, now: f64, queue: f64) {
        let gain = self.drain_gain(queue);
        // The first part of it still meets the session's own queue.
        self.queue_free_since = now + self.signal.rtt() / 2.0 + queue;
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
        // Data in flight shows the queue before the delay does.
        let deeper = self.drain_gain(self.excess / self.rate).min(gain);
        self.phase = Phase::Drain {
            gain: deeper,
            from,
            rate,
        };
        // Without competition, the carried rate does not fall while a queue stands, however slow
        // the sender.
        let stands = reading.span_from >= from && reading.queue_min > self.queue_rise();
        if stands && reading.sent < 0.9 * rate && share(rate, reading) < SHARE_ALONE {
            return self.compete(reading.now, false);
        }
        let slack =
            (DRAINED.0 * self.rate * self.signal.rtt()).max(DRAINED.1 * self.signal.packet());
        if self.excess <= slack {
            self.queue_free_since = self.queue_free_since.min(reading.now);
            self.phase = Phase::Cruise { from: reading.now };
        }
    }

    fn cruise(&mut self, reading: &Reading, from: f64) {
        // Only packets sent since then count.
        if reading.sent_at < from {
            return;
        }
        if reading.queue < self.queue_low() {
            self.undrained = 0;
        }
        self.end_trial(reading);
        if self.carries_stated() && reading.queue < self.queue_low() {
            return self.send_as_stated(reading.now);
        }
        if reading.span_from >= from && reading.queue_min > self.queue_high() {
            return self.queue_stands(reading);
        }
        let wait = self.cruise_rounds * self.signal.rtt().max(self.span() / 2.0);
        if reading.now - from > wait + self.signal.rtt() && self.judging.is_none() {
            let idle = reading.queue_min < self.queue_low();
            self.phase = Phase::Pulse {
                from: reading.now,
                rate: self.rate,
                idle,
            };
            self.queue_free_since = f64::INFINITY;
        }
    }

    /// Handles a standing queue although no more is sent than the link carries.
    fn queue_stands(&mut self, reading: &Reading) {
        self.undrained += 1;
        if self.undrained > 2 {
            return self.compete(reading.now, false);
        }
        self.believe(reading.now, self.carried);
        self.drain(reading.now, reading.queue);
    }

    fn probe_pulse(&mut self, reading: &Reading, from: f64, rate: f64, idle: bool) {
        let long = self.signal.rtt().max(1.25 * self.span());
        let seen = reading.sent_at >= from && reading.queue > self.queue_rise();
        if reading.now - from >= long || seen {
            self.judging = Some((from, reading.now, rate, idle));
            self.drain(reading.now, 0.0);
        }
    }

    /// Evaluates a pulse: if it arrived as fast as it was sent, there is more capacity.
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
            self.phase = Phase::climb(reading.carried, reading.now + self.signal.rtt());
        } else if reading.sent_at > until + self.span() {
            self.judging = None;
            let sent = rate * (until - from) / self.signal.packet();
            let usual = 2.0 * self.link_loss * sent + 2.0;
            let overflowed = std::mem::take(&mut self.overflowed) as f64 > usual;
            let factor = if overflowed { 2.0 } else { 0.5 };
            self.cruise_rounds =
                (self.cruise_rounds * factor).clamp(CRUISE_ROUNDS.0, CRUISE_ROUNDS.1);
            if !idle {
                // There was a queue: the gain was another flow's share.
                self.highest
                    .iter_mut()
                    .for_each(|sample| sample.1 = sample.1.min(rate * 1.02));
            }
        }
    }

    pub(super) fn compete(&mut self, now: f64, congested: bool) {
        let rtt = self.signal.rtt_recent();
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
            self.window.congestion(now, now, rtt);
        }
        self.undrained = 0;
        self.judging = None;
        self.phase = Phase::Compete {
            trial_at: now + self.trial_rounds * rtt,
        };
    }

    fn keep_up(&mut self, reading: &Reading, trial_at: f64) {
        let rtt = reading.rtt;
        if !reading.app_limited {
            self.window.grow(reading.now, rtt, self.signal.rtt());
        }
        // Nothing would ever shrink it again.
        let most = self.ceiling * rtt / self.signal.packet();
        self.window.packets = self.window.packets.min(most.max(2.0));
        self.rate = self.window.packets * self.signal.packet() / rtt;
        if reading.now >= trial_at {
            self.trial_since = Some(reading.now);
            self.believe(reading.now, self.carried);
            self.drain(
                reading.now,
                reading
                    .queue
                    .max(0.31 * self.signal.rtt())
                    .min(self.signal.rtt()),
            );
        }
    }

    /// Ends a trial after half a minute of round trips without a competing queue: the session is
    /// alone.
    fn end_trial(&mut self, reading: &Reading) {
        if self
            .trial_since
            .is_some_and(|since| reading.now - since > 60.0 * self.signal.rtt())
        {
            self.trial_since = None;
        }
    }
}

/// Returns the session's share of a standing queue. At rate `before` everything arrived; now less
/// is sent, and less arrives if other traffic takes its place. Input in bits per second, result 0
/// to 1.
fn share(before: f64, reading: &Reading) -> f64 {
    let (sent, carried) = (reading.sent, reading.carried);
    if carried <= sent {
        return 0.0;
    }
    let others = (sent * (before - carried) / (carried - sent)).max(0.0);
    before / (before + others)
}
