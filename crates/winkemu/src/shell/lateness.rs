//! How late packets came out, and whether a run counts.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use units::Ratio;

/// When a run was too inexact to count.
///
/// It is when more than `share` of the delivered packets, and more than [`STRAYS`] of them, came
/// out later than due by more than `late_after`; or when more than `tun_drops` packets were lost
/// ahead of the emulator because it did not read them in time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AccuracyLimit {
    /// Lateness that is too much for one packet.
    pub late_after: Duration,
    /// Share of packets that may be late.
    pub share: Ratio,
    /// Packets that may be lost ahead of the emulator.
    pub tun_drops: u64,
}

/// Late packets that are forgiven in any run: one hiccup must not spoil ten pings.
pub const STRAYS: u64 = 2;

impl Default for AccuracyLimit {
    /// 1 % later than 1 ms, which an idle machine keeps by far; no drops.
    fn default() -> Self {
        Self {
            late_after: Duration::from_millis(1),
            share: Ratio::new(0.01).expect("within 0 to 1"),
            tun_drops: 0,
        }
    }
}

/// Lateness of delivered packets: from when they were due until the kernel had them.
#[derive(Debug)]
pub(super) struct Lateness {
    histogram: Histogram<u64>,
    limit_ns: u64,
    late: u64,
}

/// 10 s: beyond that all are equally useless.
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

/// The lateness of a run's packets, in nanoseconds. Never negative: nothing comes out early.
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
    /// The latest.
    pub max_ns: u64,
    /// Packets by lateness, in bins that double.
    pub histogram: Vec<Bin>,
}

/// Packets later than the bin before, and no later than this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bin {
    /// Upper bound.
    pub up_to_ns: u64,
    /// How many.
    pub packets: u64,
}

/// Whether a run counts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// It does.
    pub counts: bool,
    /// Packets later than the limit.
    pub late: u64,
    /// The limit.
    pub late_after_ns: u64,
    /// Packets lost ahead of the emulator.
    pub tun_drops: u64,
    /// Why it does not count, for people.
    pub reason: Option<String>,
}

impl Verdict {
    pub(super) fn new(limit: &AccuracyLimit, delivered: u64, late: u64, tun_drops: u64) -> Self {
        let allowed = STRAYS.max((delivered as f64 * limit.share.get()) as u64);
        let late_after = units::duration::format(limit.late_after);
        let reason = if late > allowed {
            Some(format!(
                "{late} of {delivered} packets came out more than {late_after} late \
                 (allowed: {}, and {STRAYS} in any run)",
                limit.share
            ))
        } else if tun_drops > limit.tun_drops {
            Some(format!(
                "{tun_drops} packets were lost ahead of the emulator, which did not read them \
                 in time (allowed: {})",
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
        assert!(counts(10, 2, 0), "two strays are forgiven");
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
