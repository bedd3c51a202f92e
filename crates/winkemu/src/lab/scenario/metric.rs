//! Metrics, and the parsing of their bounds.

use serde::Serialize;
use units::{ByteSize, Rate, Ratio, duration::Span};

/// Measured quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Goodput at the receiver, in bit/s.
    Goodput,
    /// Time from start to end, in seconds.
    Seconds,
    /// Time from start to the first byte, in seconds.
    FirstByte,
    /// Share of the total goodput of the bulk transfers of its group, 0 to 1.
    Share,
    /// Share of the goodput that the links can carry, 0 to 1 or slightly more.
    Utilisation,
    /// Share of the links' rate after loss and outages, without packet headers, 0 to 1.
    Efficiency,
    /// Jain's index of the goodput of all bulk transfers of its group, 0 to 1.
    Fairness,
    /// Median delay of messages or datagrams beyond the links' one-way delay, in seconds.
    DelayP50,
    /// 95th percentile of this delay.
    DelayP95,
    /// 99th percentile of this delay.
    DelayP99,
    /// Maximum of this delay.
    DelayMax,
    /// Share of the messages or datagrams that arrive on time.
    OnTime,
    /// Share of the datagrams that do not arrive.
    Loss,
    /// Variation of the delay between datagrams by RFC 3550, in seconds.
    Jitter,
    /// Copies of datagrams beyond the first, as a share of those sent.
    Duplicates,
    /// Share of the datagrams that arrive after one sent later.
    Reordered,
    /// Share of the datagrams that arrive altered.
    Corrupt,
    /// Bytes on the first link beyond the packets sent, as a share of these.
    Overhead,
    /// Time from the end of the last outage to the next byte at the receiver, in seconds.
    Resumed,
    /// Time from the end of the last outage to nine tenths of the goodput before it, in seconds.
    Recovered,
    /// Goodput until the last outage.
    BeforeOutage,
    /// Goodput from the end of the last outage on.
    AfterOutage,
    /// Mean of the fullest queue on the data's path, in bandwidth-delay products.
    Queue,
    /// Share of the packets offered to a link that its queue dropped.
    QueueDrops,
    /// Bytes that the sending socket retransmitted.
    Retransmitted,
    /// Bytes that it retransmitted in the early part.
    RetransmittedEarly,
}

impl Metric {
    /// All metrics by name.
    pub const ALL: [(&str, Self); 26] = [
        ("goodput", Self::Goodput),
        ("seconds", Self::Seconds),
        ("first_byte", Self::FirstByte),
        ("share", Self::Share),
        ("utilisation", Self::Utilisation),
        ("efficiency", Self::Efficiency),
        ("fairness", Self::Fairness),
        ("delay_p50", Self::DelayP50),
        ("delay_p95", Self::DelayP95),
        ("delay_p99", Self::DelayP99),
        ("delay_max", Self::DelayMax),
        ("on_time", Self::OnTime),
        ("loss", Self::Loss),
        ("jitter", Self::Jitter),
        ("duplicates", Self::Duplicates),
        ("reordered", Self::Reordered),
        ("corrupt", Self::Corrupt),
        ("overhead", Self::Overhead),
        ("resumed", Self::Resumed),
        ("recovered", Self::Recovered),
        ("before_outage", Self::BeforeOutage),
        ("after_outage", Self::AfterOutage),
        ("queue", Self::Queue),
        ("queue_drops", Self::QueueDrops),
        ("retransmitted", Self::Retransmitted),
        ("retransmitted_early", Self::RetransmittedEarly),
    ];

    /// Name in files.
    pub fn name(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(_, metric)| *metric == self)
            .map_or("", |(name, _)| name)
    }

    /// Parses a bound of the metric: bit/s, seconds, bytes or a share.
    ///
    /// # Errors
    /// Description of the accepted form.
    pub(super) fn read_bound(self, text: &str) -> Result<f64, String> {
        let words = |err: units::UnitError| err.to_string();
        match self {
            Self::Goodput | Self::BeforeOutage | Self::AfterOutage => {
                let rate: Rate = text.parse().map_err(words)?;
                Ok(rate.bits_per_second() as f64)
            }
            Self::Seconds
            | Self::FirstByte
            | Self::DelayP50
            | Self::DelayP95
            | Self::DelayP99
            | Self::DelayMax
            | Self::Jitter
            | Self::Resumed
            | Self::Recovered => {
                let span: Span = text.parse().map_err(words)?;
                Ok(span.0.as_secs_f64())
            }
            Self::Share
            | Self::Utilisation
            | Self::Efficiency
            | Self::Fairness
            | Self::OnTime
            | Self::Loss
            | Self::Duplicates
            | Self::Reordered
            | Self::Corrupt
            | Self::QueueDrops => {
                let ratio: Ratio = text.parse().map_err(words)?;
                Ok(ratio.get())
            }
            Self::Retransmitted | Self::RetransmittedEarly => {
                let size: ByteSize = text.parse().map_err(words)?;
                Ok(size.bytes() as f64)
            }
            // Values above 100 % are possible.
            Self::Overhead => percent(text)
                .ok_or_else(|| format!("`{text}` is not a percentage such as \"30%\" or \"150%\"")),
            Self::Queue => products(text).ok_or_else(|| {
                format!("`{text}` is not a share of the bandwidth-delay product such as \"30%bdp\"")
            }),
        }
    }
}

/// Parses bandwidth-delay products, written as for the queue of a link.
fn products(text: &str) -> Option<f64> {
    percent(text.trim().strip_suffix("bdp")?)
}

/// Parses a percentage, which may exceed 100 %.
fn percent(text: &str) -> Option<f64> {
    let percent = text.trim().strip_suffix('%')?;
    let percent: f64 = percent.trim().parse().ok()?;
    (percent >= 0.0 && percent.is_finite()).then_some(percent / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_written_in_the_units_of_their_metric() {
        for (metric, text, value) in [
            (Metric::Goodput, "9.65Mbit/s", 9.65e6),
            (Metric::AfterOutage, "900kbit/s", 9e5),
            (Metric::FirstByte, "1.5s", 1.5),
            (Metric::Share, "45%", 0.45),
            (Metric::Utilisation, "0.85", 0.85),
            (Metric::Queue, "130%bdp", 1.3),
            (Metric::OnTime, "99%", 0.99),
            (Metric::DelayP95, "50ms", 0.05),
            (Metric::Jitter, "5ms", 0.005),
            (Metric::Loss, "0.01%", 1e-4),
            (Metric::Overhead, "150%", 1.5),
            (Metric::RetransmittedEarly, "375kB", 375e3),
        ] {
            let read = metric.read_bound(text).unwrap();
            assert!((read - value).abs() < 1e-9, "{text}: {read}");
        }
        for (metric, text, expected) in [
            (Metric::Goodput, "fast", "10Mbit/s"),
            (Metric::Seconds, "5", "1.5s"),
            (Metric::Share, "110%", "between 0 and 1"),
            (Metric::Queue, "0.3", "30%bdp"),
            (Metric::Retransmitted, "much", "660kB"),
            (Metric::Overhead, "1.5", "150%"),
        ] {
            let said = metric.read_bound(text).unwrap_err();
            assert!(said.contains(expected), "{said}");
        }
    }

    #[test]
    fn every_metric_has_a_name_of_its_own() {
        for (name, metric) in Metric::ALL {
            assert_eq!(metric.name(), name);
            assert_eq!(serde_json::to_value(metric).unwrap(), name);
        }
    }
}
