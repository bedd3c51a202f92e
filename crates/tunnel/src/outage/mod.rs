//! Outage detection: the state of the link, and the decision to continue sending.
//!
//! ```text
//!                       nothing heard for the limit,
//!                       or nothing answered
//!          +--------+ ------------------------------> +--------+
//!    ----> |   Up   |                                 | Silent |
//!          +--------+ <------------------------------ +--------+
//!            ^    ^         sign of life                  |
//!            |    |                                       | depending on Outages: at once,
//!            |    |                                       | after a while, never
//!            |    |         sign of life                  v
//!            |    +---------------------------------- +---------+
//!            |                                        | Stopped |  only beacons
//!            +--------------------------------------- +---------+
//!                     hint: up                            ^
//!                                                         | hint: down or off, from any state
//! ```
//!
//! A sign of life is any packet of the peer. If packets come but none acknowledges the local end's,
//! only an acknowledging one counts. Late detection of an outage costs retransmissions, a false one
//! costs throughput, so the limit is generous. After the hint "off", nothing is a sign of life.

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::arrival::{IDLE_BEACON, REST_BEACON, Timing};

/// Hint about the link, from a modem, an interface or a contact plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkHint {
    /// Nothing gets through: stop at once, until the peer is heard.
    Down,
    /// The link must not be used: send only beacons, even if the peer is heard.
    Off,
    /// The link is up again: continue at once.
    Up,
}

/// Policy for sending into silence, apart from beacons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outages {
    /// Never stop: repeat unacknowledged data. For a link without other traffic.
    Never,
    /// Stop after this time.
    After(Duration),
    /// Stop as soon as the silence is detected.
    AtOnce,
}

/// Consecutive reports that are not lost by chance.
const PAUSES: u32 = 3;
const PACKETS: u32 = 3;
const LIMIT_MARGIN: Duration = Duration::from_millis(1);
/// Tolerates late hosts.
const LIMIT_MIN: Duration = Duration::from_millis(20);
/// Minimum queueing delay worth waiting for: less may be a late host.
const QUEUE_MIN: Duration = Duration::from_millis(20);
/// Minimum duration of a long silence, in round trips and time; shorter ones are short outages.
const LONG_ROUND_TRIPS: u32 = 2;
const LONG_MIN: Duration = Duration::from_secs(1);
/// Minimum number of unanswered packets.
pub const UNANSWERED_PACKETS: u64 = 8;

/// State of the link, as seen from one end.
#[derive(Clone, Debug)]
pub struct Silence {
    mode: Outages,
    limit: Duration,
    /// Additional time for an answer.
    unasked: Duration,
    /// Time to drain the link's queue.
    queue: Duration,
    state: State,
    /// Start of the last silence.
    fell: Duration,
    /// Time when a packet was last heard, or was not yet expected.
    heard: Duration,
    /// Time when a packet was last acknowledged, or is taken to have been.
    answered: Duration,
    idle: bool,
    rests: bool,
    /// Time from which the peer, idle before, was expected to send as often as with streams.
    woken: Duration,
    /// Until then, packets do not contradict a hint that the link is down.
    trusted_until: Duration,
    /// True if the link must not be used, even if the peer is heard.
    off: bool,
}

/// State of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The peer is heard.
    Up,
    /// The peer is not heard, but sending continues.
    Silent {
        /// Start of the silence.
        since: Duration,
        /// Kind of the silence.
        kind: Kind,
    },
    /// Only beacons are sent.
    Stopped {
        /// Start of the silence.
        since: Duration,
        /// Kind of the silence.
        kind: Kind,
    },
}

/// Kind of a silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No packets arrive.
    Unheard,
    /// No reports arrive that acknowledge new packets.
    Unanswered,
    /// A hint reported the link down.
    Told,
}

/// Change of the link's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The link has gone down.
    Down,
    /// The link is up again.
    Up,
}

/// Parameters of outage detection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// Timing of the peer's reports.
    pub reports: Timing,
    /// Transmission time of a packet, the longer of the two directions.
    pub packet: Duration,
    /// Queueing delay of the local end's packets on the link.
    pub queue: Duration,
}

impl Expected {
    /// Returns the time without packets after which the link counts as silent.
    pub fn limit(&self) -> Duration {
        let pause = self.reports.pause();
        (pause * PAUSES + LIMIT_MARGIN)
            .max(self.packet * PACKETS)
            .max(LIMIT_MIN)
    }
}

fn long(rtt: Duration) -> Duration {
    (rtt * LONG_ROUND_TRIPS).max(LONG_MIN)
}

impl Silence {
    /// Creates the state of a link that is up at `now`.
    pub fn new(mode: Outages, expected: &Expected, now: Duration) -> Self {
        Self {
            mode,
            limit: expected.limit(),
            unasked: expected.reports.unasked(),
            queue: Duration::ZERO,
            state: State::Up,
            fell: now,
            heard: now + expected.reports.rtt,
            answered: now,
            idle: false,
            rests: false,
            woken: Duration::ZERO,
            trusted_until: Duration::ZERO,
            off: false,
        }
    }

    /// Updates the round trip time and the rates.
    pub fn set_expected(&mut self, expected: &Expected) {
        self.limit = expected.limit();
        self.unasked = expected.reports.unasked();
        self.queue = if expected.queue < QUEUE_MIN {
            Duration::ZERO
        } else {
            expected.queue
        };
    }

    /// Sets whether there are no streams and beacons are rare. When streams begin, the peer learns
    /// of them only after `rtt`.
    pub fn set_idle(&mut self, now: Duration, idle: bool, rtt: Duration) {
        if self.idle && !idle {
            self.heard = self.heard.max(now + rtt);
            self.woken = now + rtt;
        }
        self.idle = idle;
    }

    /// Sets whether the peer may be at rest.
    pub fn set_rests(&mut self, rests: bool) {
        self.rests = rests;
    }

    /// Returns the time without packets after which the link counts as silent.
    pub fn limit(&self) -> Duration {
        self.limit.max(match (self.idle, self.rests) {
            (false, _) => Duration::ZERO,
            (true, false) => IDLE_BEACON * PAUSES,
            // Each may be late, and the third one should count.
            (true, true) => REST_BEACON * PAUSES + IDLE_BEACON * PAUSES,
        })
    }

    /// Returns when the peer was last expected to begin to send as often as with streams. The
    /// [limit](Self::limit) counts from then or from its last packet, whichever is later. 0 unless
    /// the link is up.
    pub fn expected_since(&self) -> Duration {
        if self.state == State::Up {
            self.woken
        } else {
            Duration::ZERO
        }
    }

    /// Handles a packet of the peer. `progress` means that it raises the highest packet number
    /// known to have arrived.
    pub fn on_packet(&mut self, now: Duration, progress: bool) -> Option<Change> {
        self.heard = self.heard.max(now);
        if progress {
            self.answered = now;
        }
        let alive = match self.state {
            _ if self.off => false,
            State::Up => false,
            State::Silent { kind, .. } | State::Stopped { kind, .. } => match kind {
                Kind::Unheard => true,
                Kind::Unanswered => progress,
                // Packets in flight when the link went down may still arrive.
                Kind::Told => now > self.trusted_until,
            },
        };
        alive.then(|| self.rise(now))
    }

    fn rise(&mut self, now: Duration) -> Change {
        self.state = State::Up;
        self.answered = now;
        Change::Up
    }

    /// Updates the state; call at the [`deadline`](Self::deadline) or at any time. `unanswered` is
    /// the send time of the packet [`UNANSWERED_PACKETS`] after the last one that the peer
    /// reported. `patience` is the maximum time for an answer.
    pub fn on_time(
        &mut self,
        now: Duration,
        unanswered: Option<Duration>,
        patience: Duration,
    ) -> Option<Change> {
        let fallen = self.state == State::Up;
        if fallen {
            let kind = self.missing(now, unanswered, patience)?;
            self.state = State::Silent { since: now, kind };
            self.fell = now;
        }
        self.stop(now);
        fallen.then_some(Change::Down)
    }

    fn missing(
        &self,
        now: Duration,
        unanswered: Option<Duration>,
        patience: Duration,
    ) -> Option<Kind> {
        let limit = self.limit();
        if now > self.heard + limit {
            Some(Kind::Unheard)
        } else {
            let over = now > self.answer_by(unanswered?, patience);
            over.then_some(Kind::Unanswered)
        }
    }

    fn answer_by(&self, unanswered: Duration, patience: Duration) -> Duration {
        unanswered.max(self.answered) + patience + self.unasked + self.limit()
    }

    fn stop(&mut self, now: Duration) {
        let State::Silent { since, kind } = self.state else {
            return;
        };
        let stop = match self.mode {
            Outages::Never => false,
            Outages::After(time) => now >= since + time,
            Outages::AtOnce => true,
        };
        if stop {
            self.state = State::Stopped { since, kind };
        }
    }

    /// Takes an external hint about the link's state.
    ///
    /// "Down" holds until a hint "up", or until packets arrive that were sent after it; "off" holds
    /// until another hint.
    pub fn hint(&mut self, now: Duration, hint: LinkHint, rtt: Duration) -> Option<Change> {
        self.off = hint == LinkHint::Off;
        match hint {
            LinkHint::Down | LinkHint::Off => {
                let fallen = self.state == State::Up;
                let kind = Kind::Told;
                self.fell = if fallen { now } else { self.fell };
                // The pauses of an idle peer do not matter: packets were sent before or after.
                self.trusted_until = now + rtt + self.limit;
                self.state = State::Stopped { since: now, kind };
                fallen.then_some(Change::Down)
            }
            LinkHint::Up => {
                self.heard = now + rtt;
                (self.state != State::Up).then(|| self.rise(now))
            }
        }
    }

    /// Returns the state of the link.
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns the time from which anything but beacons may be sent; `None` if nothing may.
    ///
    /// When a silence begins, the link's queue is still full. If the queue is long, new packets
    /// behind it would delay retransmissions after the outage, and the link is busy without them
    /// until the queue has drained.
    pub fn sends_from(&self) -> Option<Duration> {
        match self.state {
            State::Up => Some(Duration::ZERO),
            State::Silent { since, .. } => Some(since + self.queue),
            State::Stopped { .. } => None,
        }
    }

    /// Returns true if the silence is long enough for the link's queue to have drained without
    /// being refilled.
    pub fn has_drained(&self, now: Duration) -> bool {
        match self.state {
            State::Up => false,
            State::Silent { since, .. } | State::Stopped { since, .. } => {
                !self.queue.is_zero() && now >= since + self.queue
            }
        }
    }

    /// Returns true if sending into a silence continues regardless of cost: the window is then
    /// longer.
    pub fn is_blind(&self) -> bool {
        self.mode == Outages::Never && matches!(self.state, State::Silent { .. })
    }

    /// Returns true if the silence that ends at `now` was a long one.
    pub fn was_long(&self, now: Duration, rtt: Duration) -> bool {
        now >= self.fell + long(rtt)
    }

    /// Returns true if segments in flight are to be repeated when nothing else is to be sent:
    /// always on a link without other traffic, otherwise in a silence until sending stops.
    pub fn may_repeat(&self) -> bool {
        match self.state {
            State::Up => self.mode == Outages::Never,
            State::Silent { .. } => true,
            State::Stopped { .. } => false,
        }
    }

    /// Returns when to call [`on_time`](Self::on_time), with the same arguments.
    pub fn deadline(&self, unanswered: Option<Duration>, patience: Duration) -> Option<Duration> {
        let tick = Duration::from_nanos(1);
        match (self.state, self.mode) {
            (State::Up, _) => {
                let unheard = self.heard + self.limit() + tick;
                let unanswered = unanswered.map(|at| self.answer_by(at, patience) + tick);
                Some(unanswered.map_or(unheard, |at| at.min(unheard)))
            }
            (State::Silent { since, .. }, Outages::After(time)) => Some(since + time),
            (State::Silent { .. } | State::Stopped { .. }, _) => None,
        }
    }
}
