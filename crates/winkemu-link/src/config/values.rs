//! Queues, jitter and bursts.

use std::{fmt, str::FromStr, time::Duration};

use units::{ByteSize, Ratio, duration::Span};

use super::text::{ValueError, named, read, serialize_as_text, words};

serialize_as_text!(QueueLimit, Aqm, Jitter, Gilbert);

/// Capacity of the queue. The packet in transmission is not part of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum QueueLimit {
    /// Bytes of IP packets.
    Bytes(ByteSize),
    /// Number of packets.
    Packets(u64),
    /// Share of the rate times the delay of both directions; 15 kB or more.
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

/// Choice of the packet to drop when the queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Aqm {
    /// Drop-tail: the arriving packet.
    #[default]
    Tail,
    /// Drop-head: the oldest packets.
    Head,
    /// Controlled delay (RFC 8289), and drop-tail when the queue is full.
    CoDel {
        /// Acceptable standing delay.
        target: Span,
        /// Roughly the longest round trip of the flows through the queue.
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

words! {
    /// Distribution of the extra delay.
    JitterShape {
        /// Uniform from 0 to the configured bound.
        #[default]
        Uniform = "uniform",
        /// Exponential with the configured mean.
        Exponential = "exponential",
    }
}

/// Random extra delay, drawn per packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Jitter {
    /// Bound (uniform) or mean (exponential).
    pub size: Duration,
    /// Distribution of the extra delay.
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

/// Burst loss (Gilbert-Elliott): a chain of a good and a bad state that steps with each packet.
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
    /// Share of packets that meet the bad state.
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
