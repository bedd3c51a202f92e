//! Outage schedules, and the treatment of packets during an outage.

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use serde::Serialize;
use units::{Ratio, duration::Span};

use super::{
    nanos,
    text::{ValueError, named, read, serialize_as_text, words},
};
use crate::Nanos;

serialize_as_text!(Wink, Periodic, OnOff, Spans);

/// Wink (p, i): in each interval the link is down with probability p, independently of the others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wink {
    /// Probability that an interval is down: 0 to 0.999, or 1.
    pub probability: Ratio,
    /// Length of an interval, 100 us to a day.
    pub interval: Duration,
}

const DAY: Duration = Duration::from_secs(86_400);

impl FromStr for Wink {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let parse = || {
            let values = named(text, &["p", "i"])?;
            let (probability, Span(interval)) = (read::<Ratio>(values[0])?, read(values[1])?);
            let p = probability.get();
            let fits =
                (p <= 0.999 || p == 1.0) && (Duration::from_micros(100)..=DAY).contains(&interval);
            fits.then_some(Self {
                probability,
                interval,
            })
        };
        parse().ok_or_else(|| {
            ValueError::new(
                text,
                "a wink such as \"p=0.4,i=100ms\" (p from 0 to 0.999, or 1; i from 100us to 1d)",
            )
        })
    }
}

impl fmt::Display for Wink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p={},i={}", self.probability, Span(self.interval))
    }
}

/// Periodic outages: down for `down`, up for `up`, repeated without end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Periodic {
    /// Length of the up time; more than 0.
    pub up: Duration,
    /// Length of the outage; more than 0.
    pub down: Duration,
    /// Start of the first outage; one `up` by default.
    pub first: Duration,
}

impl FromStr for Periodic {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let parse = || {
            let values = named(text, &["up", "down", "first"])?;
            let (Span(up), Span(down)) = (read(values[0])?, read(values[1])?);
            let first = values[2]
                .map_or(Some(Span(up)), |first| first.parse().ok())?
                .0;
            let fits = !up.is_zero() && !down.is_zero();
            fits.then_some(Self { up, down, first })
        };
        parse().ok_or_else(|| {
            ValueError::new(text, "a period such as \"up=9s,down=1s\" or \"up=9s,down=1s,first=5s\" (up and down above 0)")
        })
    }
}

impl fmt::Display for Periodic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [up, down, first] = [self.up, self.down, self.first].map(Span);
        write!(f, "up={up},down={down},first={first}")
    }
}

/// Alternating up and down times with exponentially distributed lengths; the link starts up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnOff {
    /// Mean up time, 1 ms or more.
    pub up: Duration,
    /// Mean down time, 1 ms or more.
    pub down: Duration,
}

impl FromStr for OnOff {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let parse = || {
            let values = named(text, &["up", "down"])?;
            let (Span(up), Span(down)) = (read(values[0])?, read(values[1])?);
            let minimum = Duration::from_millis(1);
            (up >= minimum && down >= minimum).then_some(Self { up, down })
        };
        parse().ok_or_else(|| {
            ValueError::new(
                text,
                "mean times such as \"up=20s,down=2s\" (1ms or more each)",
            )
        })
    }
}

impl fmt::Display for OnOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "up={},down={}", Span(self.up), Span(self.down))
    }
}

/// Time spans since the start of the link, as `10s+2s,30s+500ms` (start + length), or `none`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spans(pub Arc<[(Nanos, Nanos)]>);

/// Word for no spans.
const NONE: &str = "none";

impl FromStr for Spans {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let span = |text: &str| {
            let (from, length) = text.split_once('+')?;
            let (Span(from), Span(length)) = (from.parse().ok()?, length.parse().ok()?);
            (!length.is_zero()).then(|| (nanos(from), nanos(from + length)))
        };
        let list = (text.trim() != NONE).then_some(text);
        let spans = list.into_iter().flat_map(|list| list.split(','));
        let spans: Option<Vec<_>> = spans.map(span).collect();
        spans.map(|spans| Self(spans.into())).ok_or_else(|| {
            ValueError::new(
                text,
                "spans such as \"10s+2s,30s+500ms\" (start + length), \"none\", or @FILE",
            )
        })
    }
}

impl fmt::Display for Spans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str(NONE);
        }
        for (i, (from, to)) in self.0.iter().enumerate() {
            let [from, length] = [*from, to - from].map(|ns| Span(Duration::from_nanos(ns)));
            write!(f, "{}{from}+{length}", if i > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

/// Outage schedule. A direction may have several; it is down when any of them is down.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outage {
    /// Random outages, drawn per interval.
    Wink(Wink),
    /// Periodic outages.
    Periodic(Periodic),
    /// Random outages of random length.
    OnOff(OnOff),
    /// Scripted outages: down within these spans.
    Down(#[serde(serialize_with = "count_spans")] Arc<[(Nanos, Nanos)]>),
    /// Scripted contacts: up within these spans only.
    Contacts(#[serde(serialize_with = "count_spans")] Arc<[(Nanos, Nanos)]>),
}

fn count_spans<S: serde::Serializer>(
    spans: &Arc<[(Nanos, Nanos)]>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{} spans", spans.len()))
}

words! {
    /// Treatment of packets that wait for transmission during an outage.
    Queued {
        /// The sender does not know of the outage: it keeps sending, and the packets are lost.
        #[default]
        Drop = "drop",
        /// The sender knows of the outage: it stops in mid-bit and resumes at link-up.
        Hold = "hold",
    }
}

words! {
    /// Treatment of packets in flight during an outage.
    InFlight {
        /// Packets in flight arrive: the obstacle is at the sender.
        #[default]
        Pass = "pass",
        /// Packets in flight at link-down are lost.
        Drop = "drop",
        /// Packets that would arrive during the outage arrive at link-up.
        Hold = "hold",
    }
}
