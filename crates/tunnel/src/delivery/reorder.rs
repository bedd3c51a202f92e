//! Reordering extent of the path, learnt from segments that came late.

use std::{collections::BTreeMap, time::Duration};

use super::segments::{Segment, Sending};
use crate::{
    window::{Extreme, Windowed},
    wire::{Report, Span},
};

/// Later packets that must have arrived before a packet counts as lost (RFC 9002 §6.1.1).
pub(super) const PACKETS: u64 = 3;
/// Minimum time for which an extent is remembered.
const MEMORY: Duration = Duration::from_secs(30);
/// Maximum wait for late packets, in addition to a round trip.
const CAP_FLOOR: Duration = Duration::from_millis(50);

/// Position of a report: the highest packet that had arrived, and the send time, relative to that
/// packet, of a packet that would have arrived just when the report was made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Front {
    pub(super) number: u64,
    pub(super) passed: Option<Duration>,
    span: Span,
    below: u64,
}

impl Front {
    /// Creates the position of a report; `sent_at` is the send time of the highest packet, if
    /// known.
    pub(super) fn new(report: &Report, sent_at: Option<Duration>, now: Duration) -> Option<Self> {
        let highest = report.highest?;
        let held = Duration::from_micros(highest.held_us);
        Some(Self {
            number: highest.number,
            passed: sent_at.map(|at| at.saturating_add(held).min(now)),
            span: report.span,
            below: report.below,
        })
    }

    /// Returns true if the report covers a segment, which is then missing unless acknowledged by
    /// it.
    pub(super) fn covers(&self, seq: u64) -> bool {
        seq == self.below || (self.span.from..self.span.until).contains(&seq)
    }

    /// Returns the segments that the report covers.
    pub(super) fn covered<'a>(
        &self,
        seqs: &'a BTreeMap<u64, u64>,
    ) -> impl Iterator<Item = u64> + use<'a> {
        let (from, until) = (self.span.from, self.span.until.max(self.span.from));
        let first = seqs.get_key_value(&self.below).map(|(seq, _)| *seq);
        let outside = first.filter(|seq| !(from..until).contains(seq));
        let inside = seqs.range(from..until).map(|(seq, _)| *seq);
        outside.into_iter().chain(inside)
    }

    /// Returns true if `packets` later packets have arrived, the last one sent `time` later.
    pub(super) fn overtook(&self, sending: Sending, packets: u64, time: Duration) -> bool {
        sending.number.saturating_add(packets) <= self.number
            && (time.is_zero()
                || self
                    .passed
                    .is_some_and(|passed| sending.at + time <= passed))
    }
}

/// Reordering of the path.
#[derive(Clone, Debug)]
pub(super) struct Reorder {
    extent: Windowed,
    /// Position of the previous report.
    before: Option<Front>,
}

impl Reorder {
    pub(super) fn new() -> Self {
        Self {
            extent: Windowed::new(Extreme::Max, MEMORY),
            before: None,
        }
    }

    /// Returns the time to wait for overtaken packets; zero until something came late.
    pub(super) fn time(&self, smoothed: Duration) -> Duration {
        let extent = self.extent.get().unwrap_or_default();
        (extent * 3 / 2).min(smoothed + CAP_FLOOR)
    }

    /// Examines a newly acknowledged segment. It came late if the previous report showed it missing
    /// although enough later packets had arrived.
    pub(super) fn on_acked<T>(
        &mut self,
        now: Duration,
        front: &Front,
        seq: u64,
        segment: &Segment<T>,
    ) {
        let Some(before) = self.before.filter(|before| before.covers(seq)) else {
            return;
        };
        // A segment restored by FEC was lost, not late.
        if segment.coded {
            return;
        }
        // If the last transmission cannot have arrived, the previous one has.
        let arrived = if segment.last.number > front.number {
            segment.before
        } else {
            Some(segment.last).filter(|_| segment.before.is_none())
        };
        let late = arrived.filter(|sending| before.overtook(*sending, PACKETS, Duration::ZERO));
        if let (Some(sending), Some(from), Some(to)) = (late, before.passed, front.passed) {
            // It arrived between the two reports.
            let extent = (from.saturating_sub(sending.at) + to.saturating_sub(sending.at)) / 2;
            self.extent.add(now, extent);
        }
    }

    /// Returns the position of the previous report.
    pub(super) fn newest(&self) -> Option<Front> {
        self.before
    }

    /// Stores the position of a report after its processing.
    pub(super) fn on_report(&mut self, front: Front) {
        self.before = Some(front);
    }
}
