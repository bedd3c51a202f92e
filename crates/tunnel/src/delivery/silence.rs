//! What goes again into silence, and what its end says.

use std::time::Duration;

use super::{Delivery, Flight};

/// Nothing is repeated into silence more often than so many times in a round trip.
const REPEATS_PER_ROUND_TRIP: u32 = 16;
const REPEAT_MIN: Duration = Duration::from_millis(1);
/// A report that comes so much later than it might have was held, and not just queued or written by a machine that was late.
const HELD_MIN: Duration = Duration::from_millis(20);
/// And this part of a round trip.
const HELD_PART: u32 = 4;
/// After a long silence the first segments go twice, as so much is waiting for them: so many, so long after the first time, in parts of
/// a round trip.
const SECOND_SEGMENTS: usize = 8;
const SECOND_PART: u32 = 32;

impl<T> Delivery<T> {
    /// After a long silence: one of the first segments that has gone again, but once; it is to go once more. Its content, and when it
    /// was sent last.
    pub fn next_second(&mut self, now: Duration) -> Option<(u64, &mut T, Duration)> {
        let since = self.long_until?;
        let round_trip = self.rtt.smoothed();
        if now >= since + round_trip {
            self.long_until = None;
            return None;
        }
        let until = now.checked_sub(round_trip / SECOND_PART)?;
        let mut first = self.segments.first(SECOND_SEGMENTS);
        let seq = first.find_map(|(seq, segment)| {
            let once = segment.before.is_some_and(|before| before.at < since);
            let went = (since..=until).contains(&segment.last.at);
            (once && went && segment.flying).then_some(seq)
        })?;
        drop(first);
        let segment = self.segments.get_mut(seq)?;
        Some((seq, &mut segment.content, segment.last.at))
    }

    /// The segment in flight that was sent least recently, to be sent once more though it may have arrived: for
    /// silence, when there is nothing better; its content, and when that was. None if even that one has just been sent;
    /// see [`repeat_at`](Self::repeat_at).
    pub fn repeat_oldest(&mut self, now: Duration) -> Option<(u64, &mut T, Duration)> {
        let (seq, at) = self.oldest()?;
        if now < at + self.repeat_pause() {
            return None;
        }
        let segment = self.segments.get_mut(seq)?;
        Some((seq, &mut segment.content, at))
    }

    /// When there will be a segment to repeat.
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

    /// A silence is over. Packets sent before tell nothing of the round trip: they, or the reports of them, may
    /// have been held all the time. To be called with each packet that ends a silence, before or after its report is
    /// taken, if it has one.
    pub fn resume(&mut self, now: Duration) {
        self.resumed = now;
        self.expect_held();
    }

    /// The silence that is over was long, and nothing was heard in it. What was sent before the peer sent what ended it went into the
    /// outage: it need not wait for its time to be over. To be called after [`resume`](Self::resume), when the report is taken.
    pub fn resume_after_long(&mut self, now: Duration) {
        self.long_until = Some(now);
        if let Some(front) = self.reorder.newest().filter(|_| self.reported == now) {
            self.find_lost(now, &front, now.saturating_sub(self.held));
        }
    }

    /// The link has had the time to send all that stood in its queue. To be called before the report is taken that
    /// ends a silence: the round trip is shorter now than it was, unless that report was held on its way, as the queue
    /// will have been then.
    pub fn expect_drained(&mut self) {
        self.drained = true;
    }

    /// If the first reports after a silence were held on their way, by a modem that waited for its link, so
    /// were our packets: they get a round trip to arrive before they are sent again.
    pub(super) fn expect_held(&mut self) {
        let patience = self.rtt.patience();
        if self.was_held() && (self.resumed..self.resumed + patience).contains(&self.reported) {
            self.patient_until = self.resumed + patience;
        }
    }

    /// Whether the last report was held on its way. What is late by less than packets of this path are, or than a part of a round
    /// trip, says nothing: if ours were held for as long, little of what is on its way goes twice.
    pub(super) fn was_held(&self) -> bool {
        let usual = self.rtt.margin().max(self.rtt.smoothed() / HELD_PART);
        self.held >= usual.max(HELD_MIN)
    }
}
