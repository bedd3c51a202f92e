//! Whether the link is there, and whether to go on sending if it seems not to be.
//!
//! ```text
//!                       nothing heard for the limit,
//!                       or nothing answered
//!          +--------+ ------------------------------> +--------+
//!    ----> |   Up   |                                 | Silent |
//!          +--------+ <------------------------------ +--------+
//!            ^    ^         sign of life                  |
//!            |    |                                       | as Outages says: at once,
//!            |    |                                       | after a while, never
//!            |    |         sign of life                  v
//!            |    +---------------------------------- +---------+
//!            |                                        | Stopped |  only beacons
//!            +--------------------------------------- +---------+
//!                     hint: up                            ^
//!                                                         | hint: down or off, from any state
//! ```
//!
//! A sign of life is any packet of the peer's; where packets came, but none that answers ours, it is one that
//! does. To notice an outage late costs packets that go again; to see one where there is none costs throughput.
//! So the limit is generous. After the hint that the link is off, nothing is a sign of life.

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::arrival::{IDLE_BEACON, Timing};

/// News of the link, from a modem, an interface or a contact plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkHint {
    /// Nothing gets through; stop at once, until the peer is heard.
    Down,
    /// Nothing of the streams is to be sent, whether the peer is heard or not; only beacons.
    Off,
    /// It is back; go on at once.
    Up,
}

/// When to stop sending into silence, apart from gentle probing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outages {
    /// Never: what is not acknowledged is sent again and again. For a link that nobody shares.
    Never,
    /// After so long.
    After(Duration),
    /// As soon as it is noticed.
    AtOnce,
}

/// So many reports in a row are not lost by chance.
const PAUSES: u32 = 3;
const PACKETS: u32 = 3;
const LIMIT_MARGIN: Duration = Duration::from_millis(1);
/// Machines are late, too.
const LIMIT_MIN: Duration = Duration::from_millis(20);
/// A queue that is worth waiting for: less is a machine that was late.
const QUEUE_MIN: Duration = Duration::from_millis(20);
/// A silence of so many round trips, and of this time, is no wink.
const LONG_ROUND_TRIPS: u32 = 2;
const LONG_MIN: Duration = Duration::from_secs(1);
/// So many packets must be without an answer.
pub const UNANSWERED_PACKETS: u64 = 8;

/// The state of the link, as seen from one end.
#[derive(Clone, Debug)]
pub struct Silence {
    mode: Outages,
    limit: Duration,
    /// What an answer may take beyond that.
    unasked: Duration,
    /// How long it takes to send what stands in the link's queue.
    queue: Duration,
    state: State,
    /// When the last silence began.
    fell: Duration,
    /// When something was heard last, or was not to be expected yet.
    heard: Duration,
    /// When something was answered last, or it was taken to be.
    answered: Duration,
    idle: bool,
    /// Until then, packets do not contradict those who said that the link is down.
    trusted_until: Duration,
    /// The link is not to be used, whatever is heard.
    off: bool,
}

/// How the link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The peer is heard.
    Up,
    /// It is not, but sending goes on.
    Silent {
        /// Since when this is so.
        since: Duration,
        /// Of what kind.
        kind: Kind,
    },
    /// Only beacons are sent.
    Stopped {
        /// Since when it has been silent.
        since: Duration,
        /// Of what kind the silence is.
        kind: Kind,
    },
}

/// What is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any packet.
    Unheard,
    /// Reports that show that ours arrive.
    Unanswered,
    /// Nothing: somebody who knows has said that the link is down.
    Told,
}

/// What has happened to the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is silent.
    Down,
    /// It is back.
    Up,
}

/// What a silence depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// The pace of the peer's reports.
    pub reports: Timing,
    /// How long our packets take to send, and the peer's: the longer one.
    pub packet: Duration,
    /// How long a packet of ours stands in the link's queue.
    pub queue: Duration,
}

impl Expected {
    /// After how long without a packet the link is silent.
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
    /// The link is up at `now`.
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
            trusted_until: Duration::ZERO,
            off: false,
        }
    }

    /// The round trip or the rates have changed.
    pub fn set_expected(&mut self, expected: &Expected) {
        self.limit = expected.limit();
        self.unasked = expected.reports.unasked();
        self.queue = if expected.queue < QUEUE_MIN {
            Duration::ZERO
        } else {
            expected.queue
        };
    }

    /// Whether there are no streams, and beacons are rare. When there are some again the peer has to hear of it
    /// first, which takes `rtt`.
    pub fn set_idle(&mut self, now: Duration, idle: bool, rtt: Duration) {
        if self.idle && !idle {
            self.heard = self.heard.max(now + rtt);
        }
        self.idle = idle;
    }

    /// After how long without a packet the link is silent.
    pub fn limit(&self) -> Duration {
        if self.idle {
            self.limit.max(IDLE_BEACON * PAUSES)
        } else {
            self.limit
        }
    }

    /// A packet of the peer's has come. `progress` says that it shows that a packet of ours arrived, later than all before.
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
                // What was on its way when the link went down may still come.
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

    /// To be called at the [`deadline`](Self::deadline), or at any time. `unanswered` is when a packet was sent,
    /// [`UNANSWERED_PACKETS`] after the last one of which the peer has told; `patience` is how long an answer may take.
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

    /// Somebody who knows says whether the link is there.
    ///
    /// "Down" holds until the same says "up", or until packets come that were sent after it; "off" until they say otherwise.
    pub fn hint(&mut self, now: Duration, hint: LinkHint, rtt: Duration) -> Option<Change> {
        self.off = hint == LinkHint::Off;
        match hint {
            LinkHint::Down | LinkHint::Off => {
                let fallen = self.state == State::Up;
                let kind = Kind::Told;
                self.fell = if fallen { now } else { self.fell };
                self.trusted_until = now + rtt + self.limit();
                self.state = State::Stopped { since: now, kind };
                fallen.then_some(Change::Down)
            }
            LinkHint::Up => {
                self.heard = now + rtt;
                (self.state != State::Up).then(|| self.rise(now))
            }
        }
    }

    /// How the link is.
    pub fn state(&self) -> State {
        self.state
    }

    /// From when on anything but beacons may be sent; `None` if nothing may.
    ///
    /// A silence begins with what is in the link's queue: if that is long, what would be added behind it would hold up
    /// what goes again when the link is back, and until it has drained the link is used without.
    pub fn sends_from(&self) -> Option<Duration> {
        match self.state {
            State::Up => Some(Duration::ZERO),
            State::Silent { since, .. } => Some(since + self.queue),
            State::Stopped { .. } => None,
        }
    }

    /// Whether it has been silent for so long that what stood in the link's queue has left it, and has not been replaced.
    pub fn has_drained(&self, now: Duration) -> bool {
        match self.state {
            State::Up => false,
            State::Silent { since, .. } | State::Stopped { since, .. } => {
                !self.queue.is_zero() && now >= since + self.queue
            }
        }
    }

    /// Whether to send into a silence, whatever it costs: the window is longer then.
    pub fn is_blind(&self) -> bool {
        self.mode == Outages::Never && matches!(self.state, State::Silent { .. })
    }

    /// Whether the silence that is over at `now` was a long one.
    pub fn was_long(&self, now: Duration, rtt: Duration) -> bool {
        now >= self.fell + long(rtt)
    }

    /// Whether to repeat what may have arrived if there is nothing else to send: on a link that nobody shares, always;
    /// otherwise in a silence, until sending stops.
    pub fn may_repeat(&self) -> bool {
        match self.state {
            State::Up => self.mode == Outages::Never,
            State::Silent { .. } => true,
            State::Stopped { .. } => false,
        }
    }

    /// When to call [`on_time`](Self::on_time), given what it would be given.
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
