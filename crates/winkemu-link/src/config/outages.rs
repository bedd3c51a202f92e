//! Why and how the link is down.

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use serde::Serialize;
use units::{Ratio, duration::Span};

use super::{
    nanos,
    text::{ValueError, named, read, serialize_as_text, words},
};
use crate::Nanos;

serialize_as_text!(Wink, Periodic, OnOff, Spans);

/// Wink (p, i): each interval the link is down with probability p, whatever it was before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wink {
    /// Probability of an interval to be down: 0 to 0.999, or 1.
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

/// Down for `down`, up for `up`, for ever, the first time at `first`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Periodic {
    /// Length of the up time, more than 0.
    pub up: Duration,
    /// Length of the outage, more than 0.
    pub down: Duration,
    /// When the first outage begins; by default after one `up`.
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

/// Up and down in turn, for exponentially distributed times; the link starts up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnOff {
    /// Mean up time, at least 1 ms.
    pub up: Duration,
    /// Mean down time, at least 1 ms.
    pub down: Duration,
}

impl FromStr for OnOff {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let parse = || {
            let values = named(text, &["up", "down"])?;
            let (Span(up), Span(down)) = (read(values[0])?, read(values[1])?);
            let least = Duration::from_millis(1);
            (up >= least && down >= least).then_some(Self { up, down })
        };
        parse().ok_or_else(|| {
            ValueError::new(
                text,
                "mean times such as \"up=20s,down=2s\" (at least 1ms each)",
            )
        })
    }
}

impl fmt::Display for OnOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "up={},down={}", Span(self.up), Span(self.down))
    }
}

/// Spans of time counted from the start of the link, as `10s+2s,30s+500ms` (start + length).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spans(pub Arc<[(Nanos, Nanos)]>);

impl FromStr for Spans {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let span = |text: &str| {
            let (from, length) = text.split_once('+')?;
            let (Span(from), Span(length)) = (from.parse().ok()?, length.parse().ok()?);
            (!length.is_zero()).then(|| (nanos(from), nanos(from + length)))
        };
        let spans: Option<Vec<_>> = text.split(',').map(span).collect();
        spans.map(|spans| Self(spans.into())).ok_or_else(|| {
            ValueError::new(
                text,
                "spans such as \"10s+2s,30s+500ms\" (start + length), or @FILE",
            )
        })
    }
}

impl fmt::Display for Spans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (from, to)) in self.0.iter().enumerate() {
            let [from, length] = [*from, to - from].map(|ns| Span(Duration::from_nanos(ns)));
            write!(f, "{}{from}+{length}", if i > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

/// One reason for the link to be down. Several may be combined.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outage {
    /// Random per interval.
    Wink(Wink),
    /// Regular.
    Periodic(Periodic),
    /// Random lengths.
    OnOff(OnOff),
    /// Down within these spans.
    Down(#[serde(serialize_with = "count_spans")] Arc<[(Nanos, Nanos)]>),
    /// Up within these spans only.
    Contacts(#[serde(serialize_with = "count_spans")] Arc<[(Nanos, Nanos)]>),
}

fn count_spans<S: serde::Serializer>(
    spans: &Arc<[(Nanos, Nanos)]>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{} spans", spans.len()))
}

words! {
    /// What an outage does to packets that wait to be sent.
    Queued {
        /// The sender does not know: it goes on sending, and what it sends is lost.
        #[default]
        Drop = "drop",
        /// The sender knows: it stops in the middle of a bit and goes on at link-up.
        Hold = "hold",
    }
}

words! {
    /// What an outage does to packets already on their way.
    InFlight {
        /// They arrive: the obstacle is at the sender.
        #[default]
        Pass = "pass",
        /// Those in flight when the link goes down are lost.
        Drop = "drop",
        /// Those that would arrive while it is down arrive at link-up.
        Hold = "hold",
    }
}
