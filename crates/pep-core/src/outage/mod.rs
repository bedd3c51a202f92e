//! Whether the link is there, as far as anybody knows.
//!
//! Who knows something, and who is believed before whom:
//!
//! 1. the operator, for as long as they said;
//! 2. the interface that leads to the link: without a carrier nothing gets through;
//! 3. a witness that has heard something from beyond the link: a tunnel, or a probe;
//! 4. the contact plan, where it says that the link is away;
//! 5. a witness that should have heard something and has not;
//! 6. the contact plan, where it says that the link is there.
//!
//! What a witness says counts from when operator, interface or plan last said something new: before that, it speaks
//! of another time. Nobody knows anything: the link is there.

mod contacts;
pub mod patience;
pub mod probing;
pub mod revival;
#[cfg(test)]
mod tests;

use std::{collections::VecDeque, time::Duration};

pub use contacts::Contacts;

/// The same instant by two clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// By one that only goes forward, at its rate; from any beginning.
    pub steady: Duration,
    /// Unix time. It may jump; only plans count by it.
    pub wall: Duration,
}

/// Who says how the link is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// An operator, by `pepd link`.
    Operator,
    /// The interface's carrier.
    Carrier,
    /// The contact plan.
    Plan,
    /// The gateway beyond the link answers, or does not.
    Probe,
    /// Tunnels: a peer is heard, or none is.
    Tunnel,
    /// Nobody: it is taken to be there.
    Assumed,
}

impl Source {
    const ALL: [Self; 6] = [
        Self::Operator,
        Self::Carrier,
        Self::Plan,
        Self::Probe,
        Self::Tunnel,
        Self::Assumed,
    ];

    /// From its number (`as u64`).
    pub(crate) fn from_code(code: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|source| *source as u64 == code)
    }

    /// As it stands in the log and in answers to operators.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Carrier => "carrier",
            Self::Plan => "plan",
            Self::Probe => "probe",
            Self::Tunnel => "tunnel",
            Self::Assumed => "assumed",
        }
    }
}

/// Who can hear that the link is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detector {
    /// The probe of the gateway. Its silence says more than that of tunnels, whose peers may have ended.
    Probe,
    /// All tunnels together.
    Tunnel,
}

impl Detector {
    const ALL: [Self; 2] = [Self::Probe, Self::Tunnel];

    fn source(self) -> Source {
        match self {
            Self::Probe => Source::Probe,
            Self::Tunnel => Source::Tunnel,
        }
    }
}

/// How the link is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// Whether it is there.
    pub up: bool,
    /// Who says so.
    pub by: Source,
    /// Since when it has been so, whoever said it; by the steady clock.
    pub since: Duration,
}

/// What tunnels are told of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunnelLink {
    /// It is there, as far as anybody knows.
    Up,
    /// It is away. Whoever hears their peer all the same knows better.
    Down,
    /// An operator wants nothing to be sent, whoever is heard.
    Off,
}

/// An outage that is over, or the one that lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outage {
    /// When it began, Unix time.
    pub began: Duration,
    /// Who said so.
    pub by: Source,
    /// How long it has lasted; `None` while it does.
    pub lasted: Option<Duration>,
}

/// The last outage, for whoever writes it down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latest {
    /// How many there have been, this one included.
    pub number: u64,
    /// What there is to tell of it.
    pub outage: Outage,
    /// How long ago it began.
    pub age: Duration,
    /// How long all those before were together.
    pub before: Duration,
    /// How long the one before was: it may have ended in the same moment.
    pub previous: Option<Duration>,
}

/// The outages that a process before has known of.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Past {
    /// The last ones, the oldest first.
    pub outages: Vec<Outage>,
    /// How many there have been.
    pub count: u64,
    /// How long those that are over were together.
    pub down: Duration,
    /// How long ago the last one began, where it lasts.
    pub lasting: Option<Duration>,
}

/// What an operator has said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// How the link is.
    pub up: bool,
    /// Until when that counts; `None`: until further notice.
    pub until: Option<Duration>,
}

impl Order {
    const UP: u64 = 1 << 62;
    const DOWN: u64 = 2 << 62;
    const UNTIL: u64 = Self::UP - 1;

    /// In one word, so that it is changed by one store: never 0, which is no order. The end is in whole milliseconds, rounded up.
    pub fn to_word(self) -> u64 {
        let up = if self.up { Self::UP } else { Self::DOWN };
        let until = self.until.map_or(0, |until| {
            let ms = until.as_nanos().div_ceil(1_000_000);
            u64::try_from(ms).unwrap_or(u64::MAX).clamp(1, Self::UNTIL)
        });
        up | until
    }

    /// From such a word; `None` where it is no order.
    pub fn from_word(word: u64) -> Option<Self> {
        let up = match word & !Self::UNTIL {
            Self::UP => true,
            Self::DOWN => false,
            _ => return None,
        };
        let ms = word & Self::UNTIL;
        let until = (ms > 0).then(|| Duration::from_millis(ms));
        Some(Self { up, until })
    }
}

#[derive(Debug, Clone, Copy)]
struct Report {
    up: bool,
    at: Duration,
}

/// What is known of a link. All times are by the steady clock unless they say otherwise.
#[derive(Debug, Clone)]
pub struct LinkMonitor {
    order: Option<Order>,
    carrier: Option<bool>,
    contacts: Option<Contacts>,
    /// What the plan says.
    planned: Option<bool>,
    /// Since when, Unix time.
    edge: Option<Duration>,
    reports: [Option<Report>; 2],
    /// When operator, interface or plan last said something new.
    changed: Duration,
    /// What is heard so soon after the link went away by plan was on its way.
    echo: Duration,
    state: State,
    outages: VecDeque<Outage>,
    count: u64,
    down: Duration,
}

impl LinkMonitor {
    /// Outages that are remembered.
    pub const REMEMBERED: usize = 32;

    /// Nothing is known but the plan, if there is one. `echo`: how long packets may be heard that were sent before
    /// the link went away, a round trip or so.
    pub fn new(now: Now, contacts: Option<Contacts>, echo: Duration) -> Self {
        let mut monitor = Self {
            order: None,
            carrier: None,
            contacts,
            planned: None,
            edge: None,
            reports: [None; 2],
            changed: now.steady,
            echo,
            state: State {
                up: true,
                by: Source::Assumed,
                since: now.steady,
            },
            outages: VecDeque::new(),
            count: 0,
            down: Duration::ZERO,
        };
        monitor.poll(now);
        monitor
    }

    /// Goes on with what a process before has known, and with what operator and interface say now. It is to be polled once witnesses have
    /// been heard, too: an outage that nobody tells of then is over. To be called at the beginning; the steady clock has to have
    /// begun before the outage that lasts.
    pub fn resume(&mut self, now: Now, past: Past, order: Option<Order>, carrier: Option<bool>) {
        self.order = order;
        self.carrier = carrier.filter(|up| !up);
        self.state = match past.lasting.zip(past.outages.last()) {
            Some((age, outage)) => State {
                up: false,
                by: outage.by,
                since: now.steady.saturating_sub(age),
            },
            None => State {
                up: true,
                by: Source::Assumed,
                since: now.steady,
            },
        };
        (self.count, self.down) = (past.count, past.down);
        self.outages = past.outages.into();
    }

    /// An operator says how the link is (`Some`), for that long or until further notice; or that others know
    /// better (`None`).
    pub fn order(&mut self, now: Now, up: Option<bool>, lasting: Option<Duration>) {
        self.poll(now);
        let until = lasting.map(|lasting| now.steady.saturating_add(lasting));
        self.order = up.map(|up| Order { up, until });
        self.changed = now.steady;
    }

    /// When the operator's word ends, where that is certain. `None` where there is none.
    pub fn ordered_until(&self) -> Option<Duration> {
        self.order?.until
    }

    /// Whether the interface carries packets.
    pub fn carrier(&mut self, now: Now, up: bool) {
        self.poll(now);
        if self.carrier != Some(up) {
            // One that has always been there is no news.
            if self.carrier.is_some() || !up {
                self.changed = now.steady;
            }
            self.carrier = Some(up);
        }
    }

    /// Another plan, or none.
    pub fn replan(&mut self, now: Now, contacts: Option<Contacts>) {
        self.poll(now);
        self.contacts = contacts;
    }

    /// A witness heard something, last at `at`; or has not heard at `at` what it should have.
    pub fn testify(&mut self, detector: Detector, up: bool, at: Duration) {
        self.reports[detector as usize] = Some(Report { up, at });
    }

    /// A witness has nothing to listen to any more. What it has heard no longer counts; that it has
    /// missed something does, until it hears again.
    pub fn withdraw(&mut self, detector: Detector) {
        let report = &mut self.reports[detector as usize];
        *report = report.filter(|it| !it.up);
    }

    /// Takes note of the time. Returns the state when the link has come or gone.
    pub fn poll(&mut self, now: Now) -> Option<State> {
        self.end_order(now);
        self.look_at_plan(now);
        let (up, by) = self.decide();
        if up == self.state.up {
            self.state.by = by;
            return None;
        }
        let since = now.steady;
        self.record(now, up, by);
        self.state = State { up, by, since };
        Some(self.state)
    }

    /// When to poll next though nothing happens.
    pub fn deadline(&self, now: Now) -> Option<Duration> {
        let edge = self.contacts.as_ref().and_then(|contacts| {
            let next = contacts.next(now.wall)?;
            Some(now.steady + next.saturating_sub(now.wall))
        });
        [self.ordered_until(), edge].into_iter().flatten().min()
    }

    /// How the link is, as of the last poll.
    pub fn state(&self) -> State {
        self.state
    }

    /// Whether new flows have to do without it, as of the last poll. That no tunnel hears anything is not enough, as it may be
    /// the peers that are away.
    pub fn is_down(&self) -> bool {
        !self.state.up && self.state.by != Source::Tunnel
    }

    /// What tunnels are told, which have ears of their own: what operator, interface and plan say.
    pub fn tunnel_link(&self) -> TunnelLink {
        let known_down = self.carrier == Some(false) || self.planned == Some(false);
        match self.order {
            Some(Order { up: false, .. }) => TunnelLink::Off,
            None if known_down => TunnelLink::Down,
            _ => TunnelLink::Up,
        }
    }

    /// When the plan says that the link comes or goes next, Unix time.
    pub fn next_planned(&self, now: Now) -> Option<Duration> {
        self.contacts.as_ref()?.next(now.wall)
    }

    /// The last outages, the oldest first.
    pub fn outages(&self) -> impl ExactSizeIterator<Item = &Outage> {
        self.outages.iter()
    }

    /// How many outages there have been, and how long all of them together, up to now.
    pub fn totals(&self, now: Now) -> (u64, Duration) {
        let lasting = (!self.state.up).then(|| now.steady.saturating_sub(self.state.since));
        (self.count, self.down + lasting.unwrap_or_default())
    }

    /// The last outage, if there has been one.
    pub fn latest(&self, now: Now) -> Option<Latest> {
        let outage = *self.outages.back()?;
        let lasted = outage.lasted.unwrap_or_default();
        let before = self.outages.iter().nth_back(1);
        Some(Latest {
            number: self.count,
            outage,
            age: now.steady.saturating_sub(self.state.since) + lasted,
            before: self.down.saturating_sub(lasted),
            previous: before.and_then(|before| before.lasted),
        })
    }

    fn end_order(&mut self, now: Now) {
        if let Some(until) = self.ordered_until().filter(|until| *until <= now.steady) {
            self.order = None;
            self.changed = self.changed.max(until);
        }
    }

    fn look_at_plan(&mut self, now: Now) {
        let contacts = self.contacts.as_ref();
        let planned = contacts.and_then(|plan| plan.at(now.wall));
        let edge = contacts.and_then(|plan| plan.last(now.wall));
        if (planned, edge) == (self.planned, self.edge) {
            return;
        }
        (self.planned, self.edge) = (planned, edge);
        // Noticed late, it has been so for a while.
        let late = edge.map_or(Duration::ZERO, |edge| now.wall.saturating_sub(edge));
        self.changed = self.changed.max(now.steady.saturating_sub(late));
    }

    fn decide(&self) -> (bool, Source) {
        if let Some(order) = self.order {
            return (order.up, Source::Operator);
        }
        if self.carrier == Some(false) {
            return (false, Source::Carrier);
        }
        if let Some(detector) = self.detector(true) {
            return (true, detector);
        }
        if self.planned == Some(false) {
            return (false, Source::Plan);
        }
        if let Some(detector) = self.detector(false) {
            return (false, detector);
        }
        let by = match (self.planned, self.carrier) {
            (Some(_), _) => Source::Plan,
            (None, Some(_)) => Source::Carrier,
            (None, None) => Source::Assumed,
        };
        (true, by)
    }

    /// One that says so, and speaks of now.
    fn detector(&self, up: bool) -> Option<Source> {
        let echo = match self.planned {
            Some(false) if up => self.echo,
            _ => Duration::ZERO,
        };
        let from = self.changed + echo;
        let says = |detector: &Detector| {
            let report = self.reports[*detector as usize];
            report.is_some_and(|it| it.up == up && it.at >= from)
        };
        Detector::ALL.into_iter().find(says).map(Detector::source)
    }

    fn record(&mut self, now: Now, up: bool, by: Source) {
        if up {
            let lasted = now.steady.saturating_sub(self.state.since);
            self.down += lasted;
            if let Some(outage) = self.outages.back_mut() {
                outage.lasted = Some(lasted);
            }
            return;
        }
        self.count += 1;
        if self.outages.len() == Self::REMEMBERED {
            self.outages.pop_front();
        }
        self.outages.push_back(Outage {
            began: now.wall,
            by,
            lasted: None,
        });
    }
}
