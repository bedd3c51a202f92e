//! Lateness of delivered packets, and the verdict on a run.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use units::Ratio;

/// Accuracy limits beyond which a run does not count.
///
/// A packet is late when it comes out more than `late_after` after it was due. A run does not count
/// with more late packets than both `share` of the delivered ones and [`STRAYS`]. It does not
/// count either when more than `tun_drops` packets were lost ahead of the emulator, because the
/// emulator did not read them in time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AccuracyLimit {
    /// Maximum lateness of a packet.
    pub late_after: Duration,
    /// Maximum share of packets that are late.
    pub share: Ratio,
    /// Maximum number of packets lost ahead of the emulator.
    pub tun_drops: u64,
}

/// Late packets tolerated in any run: one hiccup must not spoil ten pings.
pub const STRAYS: u64 = 2;

impl Default for AccuracyLimit {
    /// 1 % later than 1 ms and no drops. An idle machine stays far below.
    fn default() -> Self {
        Self {
            late_after: Duration::from_millis(1),
            share: Ratio::new(0.01).expect("within 0 to 1"),
            tun_drops: 0,
        }
    }
}

/// Lateness of delivered packets, from the due time until the kernel accepted them.
#[derive(Debug)]
pub(super) struct Lateness {
    histogram: Histogram<u64>,
    limit_ns: u64,
    late: u64,
}

/// Limit of the histogram, 10 s. Higher values count as 10 s.
const LATENESS_NS_MAX: u64 = 10_000_000_000;

impl Lateness {
    pub(super) fn new(limit: &AccuracyLimit) -> Self {
        Self {
            histogram: Histogram::new_with_max(LATENESS_NS_MAX, 3).expect("valid bounds"),
            limit_ns: crate::link::nanos(limit.late_after),
            late: 0,
        }
    }

    pub(super) fn add(&mut self, ns: u64) {
        self.histogram.saturating_record(ns);
        self.late += u64::from(ns > self.limit_ns);
    }

    pub(super) fn late(&self) -> u64 {
        self.late
    }

    pub(super) fn report(&self) -> LatenessReport {
        let at = |quantile| self.histogram.value_at_quantile(quantile);
        let bins = self.histogram.iter_log(1_000, 2.0);
        LatenessReport {
            packets: self.histogram.len(),
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: self.histogram.max(),
            histogram: bins
                .map(|bin| Bin {
                    up_to_ns: bin.value_iterated_to(),
                    packets: bin.count_since_last_iteration(),
                })
                .collect(),
        }
    }
}

/// Lateness of a run's packets, in nanoseconds. Never negative, because no packet comes out early.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LatenessReport {
    /// Packets delivered.
    pub packets: u64,
    /// Median.
    pub p50_ns: u64,
    /// 90th percentile.
    pub p90_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Maximum.
    pub max_ns: u64,
    /// Packets by lateness, in bins that double in width.
    pub histogram: Vec<Bin>,
}

/// Bin of the histogram: packets later than the bin before, up to `up_to_ns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bin {
    /// Upper bound.
    pub up_to_ns: u64,
    /// Packets in the bin.
    pub packets: u64,
}

/// Verdict on a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// True if the run counts.
    pub counts: bool,
    /// Packets later than the limit.
    pub late: u64,
    /// Limit of lateness.
    pub late_after_ns: u64,
    /// Packets lost ahead of the emulator.
    pub tun_drops: u64,
    /// Reason for a run that does not count, for display.
    pub reason: Option<String>,
}

impl Verdict {
    pub(super) fn new(limit: &AccuracyLimit, delivered: u64, late: u64, tun_drops: u64) -> Self {
        let allowed = STRAYS.max((delivered as f64 * limit.share.get()) as u64);
        let late_after = units::duration::format(limit.late_after);
        let reason = if late > allowed {
            Some(format!(
                "{late} of {delivered} packets left the link more than {late_after} late \
                 (limit: {}, or {STRAYS} packets)",
                limit.share
            ))
        } else if tun_drops > limit.tun_drops {
            Some(format!(
                "{tun_drops} packets were lost ahead of the emulator, which read them too late \
                 (limit: {})",
                limit.tun_drops
            ))
        } else {
            None
        };
        Self {
            counts: reason.is_none(),
            late,
            late_after_ns: crate::link::nanos(limit.late_after),
            tun_drops,
            reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_counts_until_too_many_packets_are_late_or_lost() {
        let limit = AccuracyLimit::default();
        let counts = |delivered, late, drops| Verdict::new(&limit, delivered, late, drops).counts;
        assert!(counts(10, 2, 0), "two late packets are tolerated");
        assert!(!counts(10, 3, 0));
        assert!(counts(10_000, 100, 0));
        assert!(!counts(10_000, 101, 0));
        assert!(!counts(10_000, 0, 1));
        assert!(counts(0, 0, 0));
    }

    #[test]
    fn the_histogram_accounts_for_every_packet() {
        let mut lateness = Lateness::new(&AccuracyLimit::default());
        for ns in [0, 999_999, 1_000_000, 1_000_001, u64::MAX] {
            lateness.add(ns);
        }
        let report = lateness.report();
        assert_eq!(lateness.late(), 2);
        assert_eq!(report.packets, 5);
        assert_eq!(
            report.histogram.iter().map(|bin| bin.packets).sum::<u64>(),
            5
        );
    }
}
