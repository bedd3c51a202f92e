//! State of the link, from several sources.
//!
//! Sources, in order of precedence:
//!
//! 1. the operator, for the ordered time;
//! 2. the interface that leads to the link: without a carrier nothing gets through;
//! 3. a detector that has heard something from beyond the link: a tunnel, or a probe;
//! 4. the contact plan, where the link is down by plan;
//! 5. a detector that should have heard something and has not;
//! 6. flows, none of which gets an answer;
//! 7. the contact plan, where the link is up by plan.
//!
//! Reports of a detector count only if they are later than the last change of operator, interface
//! or plan. Without any source the link counts as up.

mod contacts;
pub mod flows;
pub mod patience;
pub mod probing;
pub mod revival;
#[cfg(test)]
mod tests;

use std::{collections::VecDeque, time::Duration};

pub use contacts::Contacts;

/// One instant by two clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Monotonic clock with an arbitrary start.
    pub steady: Duration,
    /// Unix time. It may jump; only plans use it.
    pub wall: Duration,
}

/// Source of the link state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// An operator, by `pepd link`.
    Operator,
    /// The interface's carrier state.
    Carrier,
    /// The contact plan.
    Plan,
    /// ICMP probes of the gateway beyond the link.
    Probe,
    /// Tunnels: a peer is heard, or none is.
    Tunnel,
    /// No source: the link is assumed up.
    Assumed,
    /// Flows, none of which gets an answer.
    Flows,
}

impl Source {
    const ALL: [Self; 7] = [
        Self::Operator,
        Self::Carrier,
        Self::Plan,
        Self::Probe,
        Self::Tunnel,
        Self::Assumed,
        Self::Flows,
    ];

    /// Returns the source of a code (`as u64`).
    pub(crate) fn from_code(code: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|source| *source as u64 == code)
    }

    /// Name in the log and in answers to operators.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Carrier => "carrier",
            Self::Plan => "plan",
            Self::Probe => "probe",
            Self::Tunnel => "tunnel",
            Self::Assumed => "assumed",
            Self::Flows => "flows",
        }
    }
}

/// Detector of the link state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detector {
    /// Probe of the gateway. Its silence counts more than that of tunnels, whose peers may have
    /// stopped.
    Probe,
    /// All tunnels together.
    Tunnel,
    /// All split flows together. They report only silence.
    Flows,
}

impl Detector {
    const ALL: [Self; 3] = [Self::Probe, Self::Tunnel, Self::Flows];

    fn source(self) -> Source {
        match self {
            Self::Probe => Source::Probe,
            Self::Tunnel => Source::Tunnel,
            Self::Flows => Source::Flows,
        }
    }
}

/// State of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// True if the link is up.
    pub up: bool,
    /// Source of the state.
    pub by: Source,
    /// Start of the state, whatever its source; by the steady clock.
    pub since: Duration,
}

/// Link state as passed to tunnels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunnelLink {
    /// Up, as far as is known.
    Up,
    /// Down. A tunnel that hears its peer ignores this.
    Down,
    /// Off by the operator: nothing is sent, even if peers are heard.
    Off,
}

/// An outage that is over, or the one that lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outage {
    /// Start, in Unix time.
    pub began: Duration,
    /// Source of the state.
    pub by: Source,
    /// Duration; `None` while it lasts.
    pub lasted: Option<Duration>,
}

/// The last outage, for the persistent record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latest {
    /// Number of outages so far, including this one.
    pub number: u64,
    /// The outage itself.
    pub outage: Outage,
    /// Time since its start.
    pub age: Duration,
    /// Total duration of all earlier outages.
    pub before: Duration,
    /// Duration of the previous one, which may have ended in the same moment.
    pub previous: Option<Duration>,
}

/// Outages known to an earlier process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Past {
    /// The last outages, the oldest first.
    pub outages: Vec<Outage>,
    /// Number of outages so far.
    pub count: u64,
    /// Total duration of those that are over.
    pub down: Duration,
    /// Time since the start of the last one, if it still lasts.
    pub lasting: Option<Duration>,
    /// Time since the end of the last one, if it is over.
    pub ended: Option<Duration>,
}

/// Operator's order for the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// Ordered state of the link.
    pub up: bool,
    /// End of the order; `None`: until further notice.
    pub until: Option<Duration>,
}

impl Order {
    const UP: u64 = 1 << 62;
    const DOWN: u64 = 2 << 62;
    const UNTIL: u64 = Self::UP - 1;

    /// Encodes the order in one word, so that one store changes it; never 0, which means no order.
    /// The end is in whole milliseconds, rounded up.
    pub fn to_word(self) -> u64 {
        let up = if self.up { Self::UP } else { Self::DOWN };
        let until = self.until.map_or(0, |until| {
            let ms = until.as_nanos().div_ceil(1_000_000);
            u64::try_from(ms).unwrap_or(u64::MAX).clamp(1, Self::UNTIL)
        });
        up | until
    }

    /// Decodes such a word; `None` where it is no order.
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

/// Monitor of a link. All times are by the steady clock unless stated otherwise.
#[derive(Debug, Clone)]
pub struct LinkMonitor {
    order: Option<Order>,
    carrier: Option<bool>,
    contacts: Option<Contacts>,
    /// State by the plan.
    planned: Option<bool>,
    /// Start of that state, in Unix time.
    edge: Option<Duration>,
    reports: [Option<Report>; 3],
    /// Last change of operator, interface or plan.
    changed: Duration,
    /// Time after a planned end in which packets that are still in transit may be heard.
    echo: Duration,
    state: State,
    outages: VecDeque<Outage>,
    count: u64,
    down: Duration,
}

impl LinkMonitor {
    /// Number of outages remembered.
    pub const REMEMBERED: usize = 32;

    /// Returns a monitor that knows only the plan, if there is one. `echo`: time after the end of a
    /// contact in which packets sent before may be heard, about one round trip.
    pub fn new(now: Now, contacts: Option<Contacts>, echo: Duration) -> Self {
        let mut monitor = Self {
            order: None,
            carrier: None,
            contacts,
            planned: None,
            edge: None,
            reports: [None; 3],
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

    /// Resumes from the state of an earlier process, and the current state of operator and
    /// interface. To be called at the start, and polled once detectors have reported, too: an
    /// outage that no source reports then is over. The steady clock has to have started before the
    /// outage that lasts.
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
                since: now.steady.saturating_sub(past.ended.unwrap_or_default()),
            },
        };
        (self.count, self.down) = (past.count, past.down);
        self.outages = past.outages.into();
    }

    /// Sets the operator's order for the link (`Some`), for that long or until further notice, or
    /// removes it (`None`).
    pub fn order(&mut self, now: Now, up: Option<bool>, lasting: Option<Duration>) {
        self.poll(now);
        let until = lasting.map(|lasting| now.steady.saturating_add(lasting));
        self.order = up.map(|up| Order { up, until });
        self.changed = now.steady;
    }

    /// End of the operator's order, where it has one. `None` without an order.
    pub fn ordered_until(&self) -> Option<Duration> {
        self.order?.until
    }

    /// Records whether the interface carries packets.
    pub fn carrier(&mut self, now: Now, up: bool) {
        self.poll(now);
        if self.carrier != Some(up) {
            // A carrier that has always been up is no change.
            if self.carrier.is_some() || !up {
                self.changed = now.steady;
            }
            self.carrier = Some(up);
        }
    }

    /// Replaces or removes the plan.
    pub fn replan(&mut self, now: Now, contacts: Option<Contacts>) {
        self.poll(now);
        self.contacts = contacts;
    }

    /// Records that a detector last heard something at `at`; or that it missed an expected packet
    /// at `at`.
    pub fn testify(&mut self, detector: Detector, up: bool, at: Duration) {
        self.reports[detector as usize] = Some(Report { up, at });
    }

    /// Records that a detector has nothing to listen to any more. Earlier packets no longer count;
    /// missed ones do, until it hears again.
    pub fn withdraw(&mut self, detector: Detector) {
        let report = &mut self.reports[detector as usize];
        *report = report.filter(|it| !it.up);
    }

    /// Removes a detector's report.
    pub fn forget(&mut self, detector: Detector) {
        self.reports[detector as usize] = None;
    }

    /// Updates the state. Returns it when the link has gone up or down.
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

    /// Time of the next poll without an event.
    pub fn deadline(&self, now: Now) -> Option<Duration> {
        let edge = self.contacts.as_ref().and_then(|contacts| {
            let next = contacts.next(now.wall)?;
            Some(now.steady + next.saturating_sub(now.wall))
        });
        [self.ordered_until(), edge].into_iter().flatten().min()
    }

    /// State of the link as of the last poll.
    pub fn state(&self) -> State {
        self.state
    }

    /// Reports whether the link is down for new flows, as of the last poll. Silence of all tunnels
    /// or flows is not sufficient: their peers or servers may be down, and a new flow may find out.
    pub fn is_down(&self) -> bool {
        !self.state.up && !matches!(self.state.by, Source::Tunnel | Source::Flows)
    }

    /// Link state for tunnels, which have detectors of their own: that of operator, interface and
    /// plan.
    pub fn tunnel_link(&self) -> TunnelLink {
        let known_down = self.carrier == Some(false) || self.planned == Some(false);
        match self.order {
            Some(Order { up: false, .. }) => TunnelLink::Off,
            None if known_down => TunnelLink::Down,
            _ => TunnelLink::Up,
        }
    }

    /// Unix time of the next planned change of the link.
    pub fn next_planned(&self, now: Now) -> Option<Duration> {
        self.contacts.as_ref()?.next(now.wall)
    }

    /// The last outages, the oldest first.
    pub fn outages(&self) -> impl ExactSizeIterator<Item = &Outage> {
        self.outages.iter()
    }

    /// Number of outages so far, and their total duration up to now.
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
        // A planned change that is noticed late is backdated.
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

    /// Returns a detector whose current report is `up`.
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
