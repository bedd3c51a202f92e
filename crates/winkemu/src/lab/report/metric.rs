//! Display of metrics: units, labels and formats.

use crate::lab::scenario::Metric;

impl Metric {
    /// Unit of [`format_value`].
    pub fn unit(self) -> &'static str {
        self.unit_and_scale().0
    }

    /// Factor from stored values (bit/s, s, bytes or 1) to [`unit`](Self::unit).
    pub(super) fn scale(self) -> f64 {
        self.unit_and_scale().1
    }

    fn unit_and_scale(self) -> (&'static str, f64) {
        match self {
            Self::Goodput | Self::BeforeOutage | Self::AfterOutage => ("Mbit/s", 1e-6),
            Self::Seconds | Self::FirstByte => ("s", 1.0),
            Self::DelayP50
            | Self::DelayP95
            | Self::DelayP99
            | Self::DelayMax
            | Self::Jitter
            | Self::Resumed
            | Self::Recovered => ("ms", 1e3),
            Self::Share
            | Self::Utilisation
            | Self::Efficiency
            | Self::Fairness
            | Self::OnTime
            | Self::Loss
            | Self::Duplicates
            | Self::Reordered
            | Self::Corrupt
            | Self::Overhead
            | Self::QueueDrops => ("%", 100.0),
            Self::Queue => ("% BDP", 100.0),
            Self::Retransmitted | Self::RetransmittedEarly => ("kB", 1e-3),
        }
    }

    /// Label above a table or on an axis.
    pub fn label(self) -> &'static str {
        match self {
            Self::Goodput => "Goodput at the receiver",
            Self::Seconds => "Time to completion",
            Self::FirstByte => "Time to first byte",
            Self::Share => "Share of the total goodput",
            Self::Utilisation => "Goodput / goodput that the link can carry",
            Self::Efficiency => "Goodput / rate after loss and outages",
            Self::Fairness => "Jain's fairness index of goodput",
            Self::DelayP50 => "Median delay beyond the one-way delay",
            Self::DelayP95 => "95th percentile of delay beyond the one-way delay",
            Self::DelayP99 => "99th percentile of delay beyond the one-way delay",
            Self::DelayMax => "Maximum delay beyond the one-way delay",
            Self::OnTime => "Arrived on time",
            Self::Loss => "Lost",
            Self::Jitter => "Jitter (RFC 3550)",
            Self::Duplicates => "Duplicates",
            Self::Reordered => "Reordered",
            Self::Corrupt => "Corrupted",
            Self::Overhead => "Bytes on the link beyond the packets sent",
            Self::Resumed => "Time from link-up to the first byte",
            Self::Recovered => "Time from link-up to 90 % of the goodput",
            Self::BeforeOutage => "Goodput until the outage",
            Self::AfterOutage => "Goodput from link-up on",
            Self::Queue => "Standing queue",
            Self::QueueDrops => "Packets dropped by the queue",
            Self::Retransmitted => "Retransmitted",
            Self::RetransmittedEarly => "Retransmitted early",
        }
    }

    /// Unit on an axis, where a lone `s` would be unclear.
    pub(super) fn axis_unit(self) -> &'static str {
        match self {
            Self::Seconds | Self::FirstByte => "seconds",
            other => other.unit(),
        }
    }
}

/// Formats a value of a metric in its unit, with three significant digits.
pub fn format_value(metric: Metric, value: f64) -> String {
    significant(value * metric.scale())
}

/// Formats a number with three significant digits, never with an exponent.
pub(super) fn significant(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.9995 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}
