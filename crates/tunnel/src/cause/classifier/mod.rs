//! Loss classifier, gap by gap.

#[cfg(test)]
mod tests;

use std::{collections::VecDeque, time::Duration};

use super::{Cause, LossEvent};
use crate::{
    path::{Minimum, PathSample, QueueDelay},
    wire::Gap,
};

/// Share of the longest recent queue above which a queue counts as full.
const FULL: f64 = 0.75;
/// Factor over the longest queue above which a queue still grows.
const GROWS: f64 = 1.03;
/// Window for the longest queue: seconds, round trips.
const LONGEST_HALF: (f64, f64) = (5.0, 20.0);
/// Minimum ratio of a queue to the delay variation between packets.
const ABOVE_JITTER: f64 = 4.0;
/// Minimum queueing delay in seconds.
const QUEUE_MIN: f64 = 2e-3;
/// Minimum packets and seconds of an outage, where the queue was not full, and where it was.
const OUTAGE: (u64, f64) = (8, 0.04);
const OUTAGE_FULL: (u64, f64) = (16, 0.08);

/// Maximum number of waiting gaps.
const WAITING_MAX: usize = 256;

/// Lost packets by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CauseCounts {
    /// Lost by the link.
    pub link: u64,
    /// Dropped at a full queue.
    pub congestion: u64,
    /// Lost in outages.
    pub outage: u64,
}

/// Classifier of gaps between packet numbers, by the delay before and after a gap, and by its
/// length in time.
///
/// 1. Many packets and a long time without any: an outage.
/// 2. The queue was short before and after: the link.
/// 3. The missing packets' time on the link stayed unused (the gap rule, Biaz and Vaidya 1999), on
///    a link without other traffic: the link.
/// 4. Otherwise: congestion.
#[derive(Clone, Debug)]
pub struct Classifier {
    queue: QueueDelay,
    /// Minimum of the negated queueing delay.
    longest: Minimum,
    /// Mean difference of delay between samples (RFC 3550 §6.4.1).
    jitter: f64,
    last: f64,
    rtt: f64,
    /// Gaps below this have been judged, or wait.
    seen: u64,
    /// Gaps that may still be filled.
    waiting: VecDeque<Gap>,
    counts: CauseCounts,
}

impl Default for Classifier {
    fn default() -> Self {
        Self::new()
    }
}

impl Classifier {
    /// Creates a classifier without samples.
    pub fn new() -> Self {
        Self {
            queue: QueueDelay::new(),
            longest: Minimum::new(),
            jitter: 0.0,
            last: 0.0,
            rtt: 0.1,
            seen: 0,
            waiting: VecDeque::new(),
            counts: CauseCounts::default(),
        }
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> CauseCounts {
        self.counts
    }

    /// Adds a sample of the path's delay; call after handling the gaps of the same report, which
    /// are older.
    pub fn on_sample(&mut self, sample: &PathSample) {
        self.rtt = sample.rtt.as_secs_f64();
        self.queue.note_rtt(sample.now.as_secs_f64(), self.rtt);
        self.note(sample.sent_at, sample.received_us);
    }

    /// Judges the new gaps of a report in the order of their numbers, and passes each to `report`.
    /// `sent_at` returns the send time of a packet, if known. `packet_time` is the time of a packet
    /// on the link, set only without other traffic on it. Gaps that arrived later than `settled_us`
    /// by the receiver's clock wait, since their packets may only be late.
    pub fn on_gaps(
        &mut self,
        gaps: &[Gap],
        packet_time: Option<Duration>,
        settled_us: u64,
        sent_at: impl Fn(u64) -> Option<Duration>,
        mut report: impl FnMut(LossEvent),
    ) {
        for gap in gaps.iter().filter(|gap| gap.missing > 0) {
            let first = gap.before.saturating_add(1);
            if first >= self.seen && self.waiting.len() < WAITING_MAX {
                self.seen = first.saturating_add(gap.missing);
                self.waiting.push_back(*gap);
            }
        }
        while self
            .waiting
            .front()
            .is_some_and(|gap| gap.after_us <= settled_us)
        {
            let event = self
                .waiting
                .pop_front()
                .and_then(|gap| self.judge(&gap, packet_time, &sent_at));
            event.into_iter().for_each(&mut report);
        }
    }

    /// Judges a gap. Does nothing if the packets around it are unknown: packets never sent cannot
    /// be missing.
    fn judge(
        &mut self,
        gap: &Gap,
        packet_time: Option<Duration>,
        sent_at: impl Fn(u64) -> Option<Duration>,
    ) -> Option<LossEvent> {
        let first = gap.before.saturating_add(1);
        let (left, right) = (
            sent_at(gap.before)?,
            sent_at(first.saturating_add(gap.missing))?,
        );
        let longest = -self.longest.get();
        let before = self.note(left, gap.before_us);
        let behind = self.note(right, gap.after_us);
        // A queue that grows beyond all previous values was not full.
        let full = behind < GROWS * longest && self.is_full(before.max(behind));
        let cause = cause(gap, full, packet_time);
        self.count(cause, gap.missing);
        Some(LossEvent {
            first,
            packets: gap.missing,
            sent_at: sent_at(first).unwrap_or(left),
            cause,
        })
    }

    fn note(&mut self, sent: Duration, received_us: u64) -> f64 {
        let sent = sent.as_secs_f64();
        let queue = self.queue.note(sent, received_us as f64 / 1e6);
        let half = LONGEST_HALF.0.max(LONGEST_HALF.1 * self.rtt);
        self.longest.note(sent, -queue, half);
        self.jitter += ((queue - self.last).abs() - self.jitter) / 16.0;
        self.last = queue;
        queue
    }

    fn is_full(&self, queue: f64) -> bool {
        let minimum = QUEUE_MIN.max(ABOVE_JITTER * self.jitter);
        queue > minimum && queue > FULL * -self.longest.get()
    }

    fn count(&mut self, cause: Cause, packets: u64) {
        match cause {
            Cause::Link => self.counts.link = self.counts.link.saturating_add(packets),
            Cause::Congestion => {
                self.counts.congestion = self.counts.congestion.saturating_add(packets);
            }
            Cause::Outage => self.counts.outage = self.counts.outage.saturating_add(packets),
        }
    }
}

/// Applies the gap rule: returns true if the missing packets' time on the link passed unused.
/// Tolerates a tenth of a packet for clocks.
fn left_room(missing: u64, time: f64, packet: Duration) -> bool {
    let (packet, slots) = (packet.as_secs_f64(), missing as f64 + 1.0);
    time >= (slots - 0.1) * packet && time < (slots + 1.0) * packet
}

fn cause(gap: &Gap, full: bool, packet_time: Option<Duration>) -> Cause {
    let time = gap.after_us.saturating_sub(gap.before_us) as f64 / 1e6;
    let (packets, silence) = if full { OUTAGE_FULL } else { OUTAGE };
    if gap.missing >= packets && time > silence {
        return Cause::Outage;
    }
    if !full || packet_time.is_some_and(|packet| left_room(gap.missing, time, packet)) {
        return Cause::Link;
    }
    Cause::Congestion
}
