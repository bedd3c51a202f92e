//! Tells causes of loss apart, gap by gap.

#[cfg(test)]
mod tests;

use std::{collections::VecDeque, time::Duration};

use super::{Cause, LossEvent};
use crate::{
    path::{Minimum, PathSample, QueueDelay},
    wire::Gap,
};

/// Of the longest queue seen lately: above this share a queue is taken for full.
const FULL: f64 = 0.75;
/// A queue this many times longer than the longest one still grows.
const GROWS: f64 = 1.03;
/// Over how long the longest queue is remembered: seconds, round trips.
const LONGEST_HALF: (f64, f64) = (5.0, 20.0);
/// A queue that is not this many times longer than delays differ from packet to packet is none.
const ABOVE_JITTER: f64 = 4.0;
/// Seconds below which nothing is called a queue.
const QUEUE_MIN: f64 = 2e-3;
/// Packets and seconds of nothing that are an outage where the queue was not full, and where it was.
const OUTAGE: (u64, f64) = (8, 0.04);
const OUTAGE_FULL: (u64, f64) = (16, 0.08);

/// Gaps that wait at most.
const WAITING_MAX: usize = 256;

/// Packets, by what was said of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CauseCounts {
    /// Lost by the link.
    pub link: u64,
    /// Dropped at a full queue.
    pub congestion: u64,
    /// Lost to outages.
    pub outage: u64,
}

/// Judges gaps between packet numbers by what the delay was at both ends of them, and by what did not arrive
/// for how long.
///
/// 1. Many packets and a long time without any: an outage.
/// 2. The queue was short before and after: the link.
/// 3. The place that the missing packets would have had on the link stayed empty (the gap rule, Biaz and
///    Vaidya 1999), where nobody else is on it: the link.
/// 4. Otherwise congestion.
#[derive(Clone, Debug)]
pub struct Classifier {
    queue: QueueDelay,
    /// Of minus the queue's delay.
    longest: Minimum,
    /// The mean difference of delay from sample to sample (RFC 3550 §6.4.1).
    jitter: f64,
    last: f64,
    rtt: f64,
    /// Everything below has been judged, or waits.
    seen: u64,
    /// May still be filled.
    waiting: VecDeque<Gap>,
    counts: CauseCounts,
}

impl Default for Classifier {
    fn default() -> Self {
        Self::new()
    }
}

impl Classifier {
    /// A classifier that has seen nothing.
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

    /// What has been said so far.
    pub fn counts(&self) -> CauseCounts {
        self.counts
    }

    /// A sample of the path's delay; to be noted after the gaps of the same report, which are older.
    pub fn on_sample(&mut self, sample: &PathSample) {
        self.rtt = sample.rtt.as_secs_f64();
        self.queue.note_rtt(sample.now.as_secs_f64(), self.rtt);
        self.note(sample.sent_at, sample.received_us);
    }

    /// Judges the gaps of a report that have not been judged, in the order of their numbers, and hands each to
    /// `tell`. `sent_at` says when a packet was sent, as far as known. `packet_time`: what a packet takes on
    /// the link, only where nobody else is on it. What arrived later than `settled_us` by the receiver's clock waits, since
    /// what is missing may only be late.
    pub fn on_gaps(
        &mut self,
        gaps: &[Gap],
        packet_time: Option<Duration>,
        settled_us: u64,
        sent_at: impl Fn(u64) -> Option<Duration>,
        mut tell: impl FnMut(LossEvent),
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
            event.into_iter().for_each(&mut tell);
        }
    }

    /// Nothing if the packets around the gap are not known: what was never sent cannot be missing.
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
        // A queue that goes on growing beyond all that was seen was not full.
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

/// The gap rule: the missing packets' time on the link passed unused. A tenth of a packet is left for clocks.
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
