//! Repeats during a silence, and recovery after it.

use std::time::Duration;

use super::{Delivery, Flight};

/// Maximum number of repeats per round trip during a silence.
const REPEATS_PER_ROUND_TRIP: u32 = 16;
const REPEAT_MIN: Duration = Duration::from_millis(1);
/// Minimum lateness of a report that counts as held, above that of queueing and of a busy host.
const HELD_MIN: Duration = Duration::from_millis(20);
/// Minimum lateness of a held report, as a part of a round trip.
const HELD_PART: u32 = 4;

impl<T> Delivery<T> {
    /// Returns the oldest segment in flight to repeat during a silence, when nothing better is to
    /// be sent, though it may have arrived. Also returns its content and the time of its last
    /// transmission. `None` if it was just sent; see [`repeat_at`](Self::repeat_at).
    pub fn repeat_oldest(&mut self, now: Duration) -> Option<(u64, &mut T, Duration)> {
        let (seq, at) = self.oldest()?;
        if now < at + self.repeat_pause() {
            return None;
        }
        let segment = self.segments.get_mut(seq)?;
        Some((seq, &mut segment.content, at))
    }

    /// Returns the time of the next repeat.
    pub fn repeat_at(&mut self) -> Option<Duration> {
        let (_, at) = self.oldest()?;
        Some(at + self.repeat_pause())
    }

    fn repeat_pause(&self) -> Duration {
        (self.rtt.smoothed() / REPEATS_PER_ROUND_TRIP).max(REPEAT_MIN)
    }

    fn oldest(&mut self) -> Option<(u64, Duration)> {
        if let Some((seq, number)) = self.undecided.first_key_value() {
            let segment = self.segments.sent_as(*seq, *number)?;
            return Some((*seq, segment.last.at));
        }
        let segments = &self.segments;
        let fronts = self.flights.each_mut().map(|flight| {
            let live = |f: &Flight| segments.sent_as(f.seq, f.number).is_some();
            while flight.front().is_some_and(|front| !live(front)) {
                flight.pop_front();
            }
            flight.front().copied()
        });
        let first = fronts
            .into_iter()
            .flatten()
            .min_by_key(|front| front.number)?;
        let segment = segments.sent_as(first.seq, first.number)?;
        Some((first.seq, segment.last.at))
    }

    /// Ends a silence. Packets sent before give no RTT sample, as they or their reports may have
    /// been held. Call with each packet that ends a silence, before or after its report is handled.
    pub fn resume(&mut self, now: Duration) {
        self.resumed = now;
        self.expect_held();
    }

    /// Ends a long silence in which nothing was heard. Packets sent before the peer's first packet
    /// went into the outage, and are lost without waiting for their age. Call after
    /// [`resume`](Self::resume), when the report is handled.
    pub fn resume_after_long(&mut self, now: Duration) {
        self.long_until = Some(now);
        if let Some(front) = self.reorder.newest().filter(|_| self.reported == now) {
            self.find_lost(now, &front, now.saturating_sub(self.held));
        }
    }

    /// Assumes that the link's queue has drained during the silence. Call before the report that
    /// ends the silence is handled. The RTT estimate drops, unless that report was held on the
    /// path, as the queue was then held, too.
    pub fn expect_drained(&mut self) {
        self.drained = true;
    }

    /// Defers losses after a silence if the first reports were held by a modem that waited for its
    /// link. The local end's packets were probably held, too, and get a round trip to arrive before
    /// retransmission.
    pub(super) fn expect_held(&mut self) {
        let patience = self.rtt.patience();
        if self.was_held() && (self.resumed..self.resumed + patience).contains(&self.reported) {
            self.patient_until = self.resumed + patience;
        }
    }

    /// Returns true if the last report was held on the path. Lateness within the path's usual
    /// margin, or a part of a round trip, does not count: if packets were held for that long, few
    /// are sent twice.
    pub(super) fn was_held(&self) -> bool {
        let usual = self.rtt.margin().max(self.rtt.smoothed() / HELD_PART);
        self.held >= usual.max(HELD_MIN)
    }
}
