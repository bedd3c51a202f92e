//! What a link is made of: checked values, each of which makes sense by itself.
//!
//! [`LinkConfig`] is what the engine runs; [`super::LinkOptions`] is how people write it.

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use serde::Serialize;
use units::{ByteSize, Rate, Ratio, duration::Span};

use super::{Direction, Nanos, trace::Trace};

/// Nanoseconds of a duration, saturating after 584 years.
pub fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(Nanos::MAX)
}

/// Why a value of a link option was refused; says what is accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct ValueError {
    text: String,
    expected: String,
}

impl ValueError {
    pub(crate) fn new(text: &str, expected: impl Into<String>) -> Self {
        Self {
            text: text.to_owned(),
            expected: expected.into(),
        }
    }
}

/// Serialises a value as its text.
macro_rules! serialize_as_text {
    ($($type:ty),*) => {$(
        impl Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )*};
}
serialize_as_text!(
    QueueLimit, Aqm, Jitter, Gilbert, Wink, Periodic, OnOff, Spans
);

/// Values of `name=value,...` lists, in any order; a bare value goes to the first name left.
fn named<'a>(text: &'a str, names: &[&'static str]) -> Option<Vec<Option<&'a str>>> {
    let mut values = vec![None; names.len()];
    for part in text.split(',') {
        let (slot, value) = match part.split_once('=') {
            Some((name, value)) => (names.iter().position(|n| *n == name.trim())?, value),
            None => (values.iter().position(Option::is_none)?, part),
        };
        if values[slot].replace(value.trim()).is_some() {
            return None;
        }
    }
    Some(values)
}

fn read<T: FromStr>(text: Option<&str>) -> Option<T> {
    text?.parse().ok()
}

/// How fast the link sends.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RateModel {
    /// No limit: packets leave as they come.
    Unlimited,
    /// A constant rate.
    Fixed(Rate),
    /// Bit/s over time, from the start of the link; 0 stops it.
    Trace(Trace<u64>),
}

impl RateModel {
    /// The mean rate in bit/s; `None` without a limit.
    pub fn mean(&self) -> Option<Rate> {
        match self {
            Self::Unlimited => None,
            Self::Fixed(rate) => Some(*rate),
            Self::Trace(trace) => Rate::from_bits_per_second(trace.mean(|bits| bits as f64) as u64),
        }
    }
}

/// How much the queue holds. The packet being sent is not in the queue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum QueueLimit {
    /// So many bytes of IP packets.
    Bytes(ByteSize),
    /// So many packets.
    Packets(u64),
    /// This share of the rate times the delay of both directions; at least 15 kB.
    BandwidthDelay(f64),
}

impl Default for QueueLimit {
    fn default() -> Self {
        Self::BandwidthDelay(1.0)
    }
}

impl FromStr for QueueLimit {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let lower = text.trim().to_ascii_lowercase();
        let parse = || {
            if let Some(share) = lower.strip_suffix("bdp") {
                let share: f64 = share.trim().strip_suffix('%')?.trim().parse().ok()?;
                return (1.0..=10_000.0)
                    .contains(&share)
                    .then_some(Self::BandwidthDelay(share / 100.0));
            }
            let packets = lower.strip_suffix("packets").or(lower.strip_suffix('p'));
            if let Some(packets) = packets {
                let count = packets.trim().parse().ok();
                return count.filter(|n| *n <= 10_000_000).map(Self::Packets);
            }
            lower.parse().ok().map(Self::Bytes)
        };
        parse().ok_or_else(|| {
            ValueError::new(text, "a queue size such as \"660kB\", \"1000p\" (packets, at most 10,000,000) or \"100%bdp\" (1% to 10000%)")
        })
    }
}

impl fmt::Display for QueueLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(size) => write!(f, "{size}"),
            Self::Packets(count) => write!(f, "{count}p"),
            Self::BandwidthDelay(share) => write!(f, "{}%bdp", share * 100.0),
        }
    }
}

/// Which packet goes when there are too many.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Aqm {
    /// The one that arrives.
    #[default]
    Tail,
    /// The oldest ones.
    Head,
    /// By controlled delay (RFC 8289), and at the tail of a full queue.
    CoDel {
        /// The acceptable standing delay.
        target: Span,
        /// About the longest round trip of the flows through it.
        interval: Span,
    },
}

impl FromStr for Aqm {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let codel = |values: &str| {
            let values = named(values, &["target", "interval"])?;
            let (target, interval): (Span, Span) = (read(values[0])?, read(values[1])?);
            (target.0 > Duration::ZERO && target < interval)
                .then_some(Self::CoDel { target, interval })
        };
        let parse = || match text.trim() {
            "tail" => Some(Self::Tail),
            "head" => Some(Self::Head),
            // RFC 8289, sections 4.3 and 4.4.
            "codel" => codel("5ms,100ms"),
            text => codel(text.strip_prefix("codel")?.trim_start_matches([':', ','])),
        };
        parse().ok_or_else(|| {
            ValueError::new(text, "\"tail\", \"head\", \"codel\" or \"codel:target=5ms,interval=100ms\" (target below interval)")
        })
    }
}

impl fmt::Display for Aqm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tail => f.write_str("tail"),
            Self::Head => f.write_str("head"),
            Self::CoDel { target, interval } => {
                write!(f, "codel:target={target},interval={interval}")
            }
        }
    }
}

/// The queue ahead of the link.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct QueueConfig {
    /// How much it holds.
    pub limit: QueueLimit,
    /// Which packet goes when that is too little.
    pub aqm: Aqm,
}

/// Ten full-sized packets: less could not carry a window of TCP over a link without delay.
const QUEUE_BYTES_MIN: u64 = 15_000;

impl QueueConfig {
    /// The bounds in bytes and in packets.
    pub(crate) fn limits(&self, bandwidth_delay_product: u64) -> (u64, u64) {
        match self.limit {
            QueueLimit::Bytes(size) => (size.bytes(), u64::MAX),
            QueueLimit::Packets(count) => (u64::MAX, count),
            QueueLimit::BandwidthDelay(share) => {
                let bytes = (bandwidth_delay_product as f64 * share).ceil() as u64;
                (bytes.max(QUEUE_BYTES_MIN), u64::MAX)
            }
        }
    }
}

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

/// A value that is one of a few words.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl FromStr for $name {
            type Err = ValueError;

            fn from_str(text: &str) -> Result<Self, ValueError> {
                match text.trim() {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(ValueError::new(text, concat!("one of", $(" \"", $word, "\"",)+))),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $word,)+ })
            }
        }
    };
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

words! {
    /// How extra delay is distributed.
    JitterShape {
        /// Evenly from 0 to the stated bound.
        #[default]
        Uniform = "uniform",
        /// Exponentially, with the stated mean.
        Exponential = "exponential",
    }
}

/// Random extra delay, drawn for each packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Jitter {
    /// The bound (uniform) or the mean (exponential).
    pub size: Duration,
    /// How it is distributed.
    pub shape: JitterShape,
}

impl FromStr for Jitter {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let (size, shape) = text.split_once(',').unwrap_or((text, "uniform"));
        let parse = || {
            let size: Span = size.parse().ok()?;
            let shape = shape.parse().ok()?;
            Some(Self {
                size: size.0,
                shape,
            })
        };
        parse().ok_or_else(|| {
            ValueError::new(
                text,
                "a jitter such as \"20ms\", \"20ms,uniform\" or \"5ms,exponential\"",
            )
        })
    }
}

impl fmt::Display for Jitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", Span(self.size), self.shape)
    }
}

/// The delay without jitter.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DelayModel {
    /// A constant.
    Fixed(#[serde(with = "units::duration")] Duration),
    /// Nanoseconds over time, taken when a packet's last bit is sent.
    Trace(Trace<Nanos>),
}

impl Default for DelayModel {
    fn default() -> Self {
        Self::Fixed(Duration::ZERO)
    }
}

impl DelayModel {
    /// The constant, or the mean over the trace.
    pub fn mean(&self) -> Duration {
        match self {
            Self::Fixed(delay) => *delay,
            Self::Trace(trace) => Duration::from_nanos(trace.mean(|ns| ns as f64) as u64),
        }
    }
}

/// How long packets are on their way.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct DelayConfig {
    /// Without jitter.
    pub base: DelayModel,
    /// Added to it.
    pub jitter: Jitter,
    /// Whether packets may overtake each other; otherwise one waits for those before it.
    pub reorder: bool,
}

/// Loss in bursts: a chain of a good and a bad state that steps with each packet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gilbert {
    /// Probability of a step from good to bad.
    pub to_bad: Ratio,
    /// Probability of a step from bad to good.
    pub to_good: Ratio,
    /// Loss in the bad state, 1 by default.
    pub loss_bad: Ratio,
    /// Loss in the good state, 0 by default.
    pub loss_good: Ratio,
}

impl Gilbert {
    /// The share of packets that meet the bad state.
    pub fn share_bad(&self) -> f64 {
        self.to_bad.get() / (self.to_bad.get() + self.to_good.get())
    }
}

impl FromStr for Gilbert {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let parse = || {
            let values = named(text, &["p", "q", "bad", "good"])?;
            let (to_bad, to_good): (Ratio, Ratio) = (read(values[0])?, read(values[1])?);
            let loss = |i: usize, default: &str| values[i].unwrap_or(default).parse().ok();
            let (loss_bad, loss_good) = (loss(2, "1")?, loss(3, "0")?);
            (to_bad.get() + to_good.get() > 0.0).then_some(Self {
                to_bad,
                to_good,
                loss_bad,
                loss_good,
            })
        };
        parse().ok_or_else(|| {
            ValueError::new(text, "\"p,q\" or \"p=0.01,q=0.3,bad=1,good=0\": step to bad, step to good, loss in each; shares from 0 to 1, p + q above 0")
        })
    }
}

impl fmt::Display for Gilbert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            to_bad,
            to_good,
            loss_bad,
            loss_good,
        } = self;
        write!(f, "p={to_bad},q={to_good},bad={loss_bad},good={loss_good}")
    }
}

/// Loss on the link. A packet is lost when any model says so.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct LossConfig {
    /// Packet error ratio, whatever the size.
    pub packet: Ratio,
    /// Bit error ratio: a packet of n bytes on the wire is lost with `1 - (1 - BER)^(8 n)`.
    pub bit_errors: Ratio,
    /// Bursts.
    pub burst: Option<Gilbert>,
    /// Packet k is lost where entry k is true; starts again at its end.
    #[serde(skip)]
    pub trace: Option<Arc<[bool]>>,
}

/// One direction of a link.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PathConfig {
    /// How fast it sends.
    pub rate: RateModel,
    /// Bytes that each packet takes on the wire beyond its own; at most 1000.
    pub overhead_bytes: u16,
    /// What waits to be sent.
    pub queue: QueueConfig,
    /// When it is down. The same outage in both directions is down at the same times.
    pub outages: Vec<Outage>,
    /// What an outage does to packets that wait.
    pub queued: Queued,
    /// What an outage does to packets in flight.
    pub in_flight: InFlight,
    /// What it loses.
    pub loss: LossConfig,
    /// How long packets travel.
    pub delay: DelayConfig,
    /// Share of packets that arrive twice.
    pub duplicate: Ratio,
    /// Share of packets with one bit flipped.
    pub corrupt: Ratio,
}

impl Default for PathConfig {
    /// A wire: no limit, no delay, no loss.
    fn default() -> Self {
        Self {
            rate: RateModel::Unlimited,
            overhead_bytes: 0,
            queue: QueueConfig::default(),
            outages: Vec::new(),
            queued: Queued::default(),
            in_flight: InFlight::default(),
            loss: LossConfig::default(),
            delay: DelayConfig::default(),
            duplicate: Ratio::default(),
            corrupt: Ratio::default(),
        }
    }
}

/// A link: two directions, independent but for outages.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct LinkConfig {
    /// Part of every draw, so that several links with one seed differ.
    pub id: u64,
    /// From the end called A.
    pub ab: PathConfig,
    /// From the end called B.
    pub ba: PathConfig,
}

impl LinkConfig {
    /// A link that is the same in both directions.
    pub fn symmetric(path: PathConfig) -> Self {
        Self {
            id: 0,
            ab: path.clone(),
            ba: path,
        }
    }

    /// One direction.
    pub fn path(&self, direction: Direction) -> &PathConfig {
        match direction {
            Direction::AtoB => &self.ab,
            Direction::BtoA => &self.ba,
        }
    }

    /// The delay of both directions, without jitter and waiting.
    pub fn round_trip(&self) -> Duration {
        self.ab.delay.base.mean() + self.ba.delay.base.mean()
    }

    /// The bandwidth-delay product of one direction in bytes; 0 without a rate limit.
    pub fn bandwidth_delay_product(&self, direction: Direction) -> u64 {
        let rate = self.path(direction).rate.mean();
        rate.map_or(0, |rate| rate.bandwidth_delay_product(self.round_trip()))
    }
}
