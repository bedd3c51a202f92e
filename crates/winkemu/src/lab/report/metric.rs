//! How metrics are shown.

use crate::lab::scenario::Metric;

impl Metric {
    /// The unit of [`format_value`].
    pub fn unit(self) -> &'static str {
        self.unit_and_scale().0
    }

    /// The unit of its values as they are kept, bit/s, s, bytes or 1, times this is
    /// [`unit`](Self::unit).
    pub(super) fn scale(self) -> f64 {
        self.unit_and_scale().1
    }

    fn unit_and_scale(self) -> (&'static str, f64) {
        match self {
            Self::Goodput => ("Mbit/s", 1e-6),
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

    /// What stands above a table or on an axis.
    pub fn label(self) -> &'static str {
        match self {
            Self::Goodput => "Goodput at the receiver",
            Self::Seconds => "Time to completion",
            Self::FirstByte => "Time to first byte",
            Self::Share => "Share of the goodput of all",
            Self::Utilisation => "Goodput, of what the link could carry",
            Self::Efficiency => "Goodput, of the rate less loss and outages",
            Self::Fairness => "Jain's index of the goodput of all",
            Self::DelayP50 => "Half of them take at most, beyond one way",
            Self::DelayP95 => "95 % of them take at most, beyond one way",
            Self::DelayP99 => "99 % of them take at most, beyond one way",
            Self::DelayMax => "The slowest takes, beyond one way",
            Self::OnTime => "There in time",
            Self::Loss => "Lost for good",
            Self::Jitter => "Jitter (RFC 3550)",
            Self::Duplicates => "Arrived more than once",
            Self::Reordered => "Arrived behind later ones",
            Self::Corrupt => "Arrived otherwise than sent",
            Self::Overhead => "Bytes on the link beyond the packets sent",
            Self::Resumed => "First byte after the outage",
            Self::Recovered => "Nine tenths of the goodput after the outage",
            Self::Queue => "Standing queue",
            Self::QueueDrops => "Packets dropped by the queue",
            Self::Retransmitted => "Sent again",
            Self::RetransmittedEarly => "Sent again early on",
        }
    }

    /// The unit as it stands at an axis: a lone `s` puzzles.
    pub(super) fn axis_unit(self) -> &'static str {
        match self {
            Self::Seconds | Self::FirstByte => "seconds",
            other => other.unit(),
        }
    }
}

/// A value of a metric in its unit, with three significant digits.
pub fn format_value(metric: Metric, value: f64) -> String {
    significant(value * metric.scale())
}

/// Three significant digits, but never an exponent.
pub(super) fn significant(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.9995 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}
