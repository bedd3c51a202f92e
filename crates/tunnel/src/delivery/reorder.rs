//! How much packets overtake each other, learnt from what arrived after all.

use std::{collections::BTreeMap, time::Duration};

use super::segments::{Segment, Sending};
use crate::{
    window::{Extreme, Windowed},
    wire::{Report, Span},
};

/// So many later packets must have arrived before one counts as lost (RFC 9002 §6.1.1).
pub(super) const PACKETS: u64 = 3;
/// For how long an extent is remembered at least.
const MEMORY: Duration = Duration::from_secs(30);
/// Beyond a round trip and this, nothing waits for what is late.
const CAP_FLOOR: Duration = Duration::from_millis(50);

/// A report's moment: the highest packet that had arrived, and how much later than that packet something
/// would have been sent that arrived just when the report was made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Front {
    pub(super) number: u64,
    pub(super) passed: Option<Duration>,
    span: Span,
    below: u64,
}

impl Front {
    /// `sent_at` is when the highest packet was sent, as far as known.
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

    /// Whether the report says, of a segment that was not acknowledged by it, that it is missing.
    pub(super) fn covers(&self, seq: u64) -> bool {
        seq == self.below || (self.span.from..self.span.until).contains(&seq)
    }

    /// Of these segments, those that it covers.
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

    /// Whether so many packets after this one have arrived, the last one so long after.
    pub(super) fn overtook(&self, sending: Sending, packets: u64, time: Duration) -> bool {
        sending.number.saturating_add(packets) <= self.number
            && (time.is_zero()
                || self
                    .passed
                    .is_some_and(|passed| sending.at + time <= passed))
    }
}

/// The reordering of the path.
#[derive(Clone, Debug)]
pub(super) struct Reorder {
    extent: Windowed,
    /// The report before this one.
    before: Option<Front>,
}

impl Reorder {
    pub(super) fn new() -> Self {
        Self {
            extent: Windowed::new(Extreme::Max, MEMORY),
            before: None,
        }
    }

    /// For how long to wait for what has been overtaken; zero until something came late.
    pub(super) fn time(&self, smoothed: Duration) -> Duration {
        let extent = self.extent.get().unwrap_or_default();
        (extent * 3 / 2).min(smoothed + CAP_FLOOR)
    }

    /// Looks at a segment that a report acknowledges: it came late if the report before said that it was missing,
    /// though enough later packets had arrived then.
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
        // What was restored by overcode has not been late but lost.
        if segment.coded {
            return;
        }
        // If the last sending cannot have arrived, it was the one before that has.
        let arrived = if segment.last.number > front.number {
            segment.before
        } else {
            Some(segment.last).filter(|_| segment.before.is_none())
        };
        let late = arrived.filter(|sending| before.overtook(*sending, PACKETS, Duration::ZERO));
        if let (Some(sending), Some(from), Some(to)) = (late, before.passed, front.passed) {
            // It came between the two reports.
            let extent = (from.saturating_sub(sending.at) + to.saturating_sub(sending.at)) / 2;
            self.extent.add(now, extent);
        }
    }

    /// The report before.
    pub(super) fn newest(&self) -> Option<Front> {
        self.before
    }

    /// A report has been dealt with.
    pub(super) fn on_report(&mut self, front: Front) {
        self.before = Some(front);
    }
}
