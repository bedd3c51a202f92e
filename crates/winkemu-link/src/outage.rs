//! Outage schedules. Every schedule is a function of time alone and independent of traffic.

use std::collections::VecDeque;

use super::{
    FOREVER, Nanos,
    config::{Outage, PathConfig, nanos},
    random::{Model, Stream},
};

/// Link state at an instant, and the time until which it is known to last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinkState {
    pub(crate) up: bool,
    /// First instant at which the state may differ.
    pub(crate) until: Nanos,
}

/// Outage schedule with its state.
#[derive(Debug, Clone)]
enum Schedule {
    /// Reynolds 2006, section 3.2.1: each interval is down with probability p.
    Wink {
        probability: f64,
        interval: Nanos,
        draws: Stream,
    },
    Periodic {
        up: Nanos,
        down: Nanos,
        first: Nanos,
    },
    OnOff(OnOff),
    /// Sorted, disjoint spans; up or down inside them.
    Spans {
        spans: Vec<(Nanos, Nanos)>,
        up_inside: bool,
    },
}

impl Schedule {
    fn new(outage: &Outage, seed: u64, link: u64) -> Self {
        match outage {
            Outage::Wink(wink) => Self::Wink {
                probability: wink.probability.get(),
                interval: nanos(wink.interval),
                draws: Stream::of_link(seed, link, Model::Wink),
            },
            Outage::Periodic(periodic) => Self::Periodic {
                up: nanos(periodic.up),
                down: nanos(periodic.down),
                first: nanos(periodic.first),
            },
            Outage::OnOff(on_off) => {
                let draws = Stream::of_link(seed, link, Model::OnOff);
                Self::OnOff(OnOff::new(nanos(on_off.up), nanos(on_off.down), draws))
            }
            Outage::Down(spans) => Self::spans(spans, false),
            Outage::Contacts(spans) => Self::spans(spans, true),
        }
    }

    fn spans(spans: &[(Nanos, Nanos)], up_inside: bool) -> Self {
        let spans = units::contacts::joined(spans.to_vec());
        Self::Spans { spans, up_inside }
    }

    fn at(&mut self, now: Nanos) -> LinkState {
        match self {
            Self::Wink {
                probability,
                interval,
                draws,
            } => {
                let number = now / *interval;
                let certain = *probability <= 0.0 || *probability >= 1.0;
                let end = (number + 1).saturating_mul(*interval);
                LinkState {
                    up: !draws.happens(number, *probability),
                    until: if certain { FOREVER } else { end },
                }
            }
            Self::Periodic { up, down, first } => periodic(now, *up, *down, *first),
            Self::OnOff(on_off) => on_off.at(now),
            Self::Spans { spans, up_inside } => inside(spans, now, *up_inside),
        }
    }
}

/// State of a link that is up until `first`, then down, up, down, and so on.
fn periodic(now: Nanos, up: Nanos, down: Nanos, first: Nanos) -> LinkState {
    let Some(since) = now.checked_sub(first) else {
        let until = first;
        return LinkState { up: true, until };
    };
    let cycle = now - since % (up + down);
    if now < cycle + down {
        let until = cycle + down;
        LinkState { up: false, until }
    } else {
        let until = cycle + down + up;
        LinkState { up: true, until }
    }
}

fn inside(spans: &[(Nanos, Nanos)], now: Nanos, up_inside: bool) -> LinkState {
    let next = spans.partition_point(|(_, to)| *to <= now);
    let (inside, until) = match spans.get(next) {
        Some((from, to)) if *from <= now => (true, *to),
        Some((from, _)) => (false, *from),
        None => (false, FOREVER),
    };
    let up = inside == up_inside;
    LinkState { up, until }
}

/// Alternating up and down times with exponentially distributed lengths; starts up.
#[derive(Debug, Clone)]
struct OnOff {
    mean_up: f64,
    mean_down: f64,
    draws: Stream,
    /// Ends of the remembered spans; the first entry is the end of span `first`.
    ends: VecDeque<Nanos>,
    first: u64,
}

/// Spans remembered, for packets that look back over their flight.
const SPANS_REMEMBERED: usize = 65_536;

impl OnOff {
    fn new(up: Nanos, down: Nanos, draws: Stream) -> Self {
        Self {
            mean_up: up as f64,
            mean_down: down as f64,
            draws,
            ends: VecDeque::new(),
            first: 0,
        }
    }

    fn at(&mut self, now: Nanos) -> LinkState {
        while self.ends.back().is_none_or(|end| *end <= now) {
            self.draw_span();
        }
        let k = self.ends.partition_point(|end| *end <= now);
        let up = (self.first + k as u64).is_multiple_of(2);
        let until = self.ends[k];
        LinkState { up, until }
    }

    fn draw_span(&mut self) {
        let number = self.first + self.ends.len() as u64;
        let mean = if number.is_multiple_of(2) {
            self.mean_up
        } else {
            self.mean_down
        };
        let length = self.draws.exponential(number, mean).ceil() as u64;
        let start = self.ends.back().copied().unwrap_or(0);
        self.ends.push_back(start.saturating_add(length.max(1)));
        if self.ends.len() > SPANS_REMEMBERED {
            self.ends.pop_front();
            self.first += 1;
        }
    }
}

/// All schedules of a direction: the link is up when none of them is down.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    schedules: Vec<Schedule>,
}

impl Gate {
    /// Creates the gate. The same seed and link give the same gate in both directions.
    pub(crate) fn new(outages: &[Outage], seed: u64, link: u64) -> Self {
        let schedules = outages
            .iter()
            .map(|outage| Schedule::new(outage, seed, link));
        Self {
            schedules: schedules.collect(),
        }
    }

    pub(crate) fn at(&mut self, now: Nanos) -> LinkState {
        let mut state = LinkState {
            up: true,
            until: FOREVER,
        };
        for schedule in &mut self.schedules {
            let one = schedule.at(now);
            // A schedule that is down sets the minimum wait on its own.
            state = match (state.up, one.up) {
                (false, true) => state,
                (true, false) => one,
                (false, false) => LinkState {
                    up: false,
                    until: state.until.max(one.until),
                },
                (true, true) => LinkState {
                    up: true,
                    until: state.until.min(one.until),
                },
            };
        }
        state
    }

    /// Reports whether the link stays up from `from` until just before `to`.
    pub(crate) fn is_up_throughout(&mut self, from: Nanos, to: Nanos) -> bool {
        let mut now = from;
        while now < to {
            let state = self.at(now);
            if !state.up {
                return false;
            }
            now = state.until;
        }
        true
    }

    /// First instant at or after `from` at which the link is up; [`FOREVER`] if it never is.
    pub(crate) fn next_up(&mut self, from: Nanos) -> Nanos {
        let mut now = from;
        while now < FOREVER {
            let state = self.at(now);
            if state.up {
                return now;
            }
            now = state.until;
        }
        FOREVER
    }
}

/// Up and down times of a link, independent of its traffic.
#[derive(Debug, Clone)]
pub struct Availability(Gate);

impl Availability {
    /// Schedule of one direction of link number `link` (`LinkConfig::id`) with this seed.
    pub fn new(path: &PathConfig, seed: u64, link: u64) -> Self {
        Self(Gate::new(&path.outages, seed, link))
    }

    /// Up time from `from` until just before `to`.
    pub fn up_within(&mut self, from: Nanos, to: Nanos) -> Nanos {
        let spans = self.spans(from, to);
        spans
            .filter(|(_, _, up)| *up)
            .map(|(from, to, _)| to - from)
            .sum()
    }

    /// Last outage that ends between `from` and `to`: its start (`from` or later) and its end.
    pub fn last_outage(&mut self, from: Nanos, to: Nanos) -> Option<(Nanos, Nanos)> {
        let mut found = None;
        let mut down_since = None;
        for (start, _, up) in self.spans(from, to) {
            match (up, down_since) {
                (false, None) => down_since = Some(start),
                (true, Some(since)) => {
                    found = Some((since, start));
                    down_since = None;
                }
                _ => {}
            }
        }
        found
    }

    /// Spans of constant state between `from` and `to`; neighbours may have the same state.
    fn spans(&mut self, from: Nanos, to: Nanos) -> impl Iterator<Item = (Nanos, Nanos, bool)> {
        let mut now = from;
        std::iter::from_fn(move || {
            let state = (now < to).then(|| self.0.at(now))?;
            let start = now;
            now = state.until.min(to);
            Some((start, now, state.up))
        })
    }
}
