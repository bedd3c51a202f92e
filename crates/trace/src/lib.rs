//! A record of events inside the pure crates, for analysis of connections.
//!
//! ```text
//!   session, relay, chain of boosters          the caller that drives them
//!   ---------------------------------          -----------------------------
//!   Trace::push(|| Event) ----> [ Log ] -----> Trace::take() --> qlog::Writer --> a file
//! ```
//!
//! A disabled [`Trace`] costs one branch per event, and the event is not built. An enabled one
//! keeps events until they are taken, up to a limit, and counts those beyond.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod event;
#[cfg(feature = "qlog")]
pub mod qlog;

use std::{collections::VecDeque, time::Duration};

pub use event::{Event, Frame, Metrics, Packet, Ranges};

/// A sink of events; initially disabled.
#[derive(Debug, Default)]
pub struct Trace(Option<Box<Log>>);

#[derive(Debug)]
struct Log {
    now: Duration,
    events: VecDeque<(Duration, Event)>,
    weight: usize,
    most: usize,
    missed: u64,
}

/// Events in chronological order.
#[derive(Debug, Default, Clone)]
pub struct Taken {
    /// Events, each with its time by the clock of the traced object.
    pub events: VecDeque<(Duration, Event)>,
    /// Sum of the [weights](Event::weight).
    pub weight: usize,
    /// Events dropped at the limit since the last call.
    pub missed: u64,
}

impl Trace {
    /// Enables the trace with a limit of `most` on the total [weight](Event::weight). No effect if
    /// enabled already.
    pub fn begin(&mut self, most: usize) {
        self.0.get_or_insert_with(|| {
            Box::new(Log {
                now: Duration::ZERO,
                events: VecDeque::new(),
                weight: 0,
                most,
                missed: 0,
            })
        });
    }

    /// Disables the trace and drops its events.
    pub fn end(&mut self) {
        self.0 = None;
    }

    /// Returns whether the trace is enabled.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Sets the time of the events that follow.
    #[inline]
    pub fn at(&mut self, now: Duration) {
        if let Some(log) = &mut self.0 {
            log.now = now;
        }
    }

    /// Appends an event, which is built only if the trace is enabled.
    #[inline]
    pub fn push(&mut self, event: impl FnOnce() -> Event) {
        if let Some(log) = &mut self.0 {
            log.push(event());
        }
    }

    /// Takes all kept events.
    pub fn take(&mut self) -> Taken {
        self.0.as_mut().map_or_else(Taken::default, |log| Taken {
            events: std::mem::take(&mut log.events),
            weight: std::mem::take(&mut log.weight),
            missed: std::mem::take(&mut log.missed),
        })
    }
}

impl Log {
    #[cold]
    fn push(&mut self, event: Event) {
        let weight = event.weight();
        if self.weight.saturating_add(weight) <= self.most {
            self.weight += weight;
            self.events.push_back((self.now, event));
        } else {
            self.missed += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(first: u64) -> Event {
        Event::Lost {
            first,
            packets: 1,
            cause: "link",
        }
    }

    #[test]
    fn a_trace_that_is_off_makes_no_event() {
        let mut trace = Trace::default();
        trace.push(|| unreachable!("it is off"));
        trace.begin(1);
        trace.end();
        trace.push(|| unreachable!("the trace is disabled again"));
        assert!(trace.take().events.is_empty());
    }

    #[test]
    fn events_beyond_the_limit_are_counted_until_others_are_taken() {
        let mut trace = Trace::default();
        trace.begin(2);
        for number in 0..5 {
            trace.at(Duration::from_millis(number));
            trace.push(|| lost(number));
        }
        let taken = trace.take();
        let times: Vec<_> = taken.events.iter().map(|(at, _)| at.as_millis()).collect();
        assert_eq!((times, taken.missed), (vec![0, 1], 3));
        trace.push(|| lost(5));
        let taken = trace.take();
        assert_eq!((taken.events.len(), taken.missed), (1, 0));
    }
}
