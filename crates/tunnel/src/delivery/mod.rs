//! Sending side of a session: acknowledged and lost segments, and retransmission.
//!
//! ```text
//!            push, on_sent                     acknowledged
//!   (new) ------------------> in flight --------------------------------> released
//!                              |     ^                                          ^
//!                 reported     |     | on_sent: retransmitted,                  |
//!                 missing      v     | new packet number                        |
//!                             lost --+------------------------------------------+
//! ```
//!
//! Every packet has a number that is never reused. Every segment has one that it keeps across
//! retransmissions. Reports list segments, and the highest packet that has arrived. Any single
//! report is therefore enough to act on, and no timer is needed: reports keep coming, and one of
//! them shows each loss.
//!
//! A segment is lost if a report covers it without listing it, and either
//!
//! - three later packets had arrived when the report was made (RFC 9002 §6.1.1). The last of them
//!   must have been sent later by the path's reordering extent (as in RFC 8985), which is zero
//!   until a packet comes late; or
//! - it is older than a round trip, a margin, and the extent again. The age counts at the time the
//!   report was made. A queue or a modem that held the report therefore does not distort it.
//!
//! FEC-protected packets get more time, so that their repair packets can take effect.

mod copies;
mod log;
mod reorder;
mod report;
mod rtt;
mod segments;
mod silence;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use copies::Copies;
use log::Log;
use reorder::Reorder;
use rtt::{Lateness, Rtt};
use segments::{Segments, Sending};

use crate::path::PathSample;

/// Send window in round trips. A segment may be lost six times in a row while others proceed; with
/// four, a loss of one in twelve cost 6 % of the rate when there were no copies.
const WINDOW_ROUND_TRIPS: u32 = 8;
/// Minimum window in segments, so that losses show on the slowest link.
const WINDOW_SEGMENTS_MIN: usize = 64;
/// Maximum window in segments: numbers are 32 bits on the wire. Suffices for 10 Gbit/s for a
/// second.
const WINDOW_SEGMENTS_MAX: usize = 1 << 20;
/// Segments, and bytes on the link, by which urgent segments may exceed the window.
const BYPASS_SEGMENTS: usize = 4096;
const BYPASS_BYTES: u64 = 1 << 20;
/// Entries of acknowledged segments that may stay in a queue of flights.
const FLIGHTS_SLACK: usize = 4096;
/// Report spacings by which a report may be late.
const WINDOW_SPACINGS: u32 = 3;
/// Additional bytes in flight while the link is silent and nothing stops the sender. Data sent for
/// the first time into the silence need not be sent when the link is up again.
pub const BLIND_BYTES: u64 = 16 << 20;
/// Send times are kept for four round trips and this.
const LOG_MIN: Duration = Duration::from_millis(250);

/// Sender's state of all segments. `T` is the content of a segment.
#[derive(Clone, Debug)]
pub struct Delivery<T> {
    log: Log,
    segments: Segments<T>,
    kept_max: usize,
    /// Segments in the order of their last transmission, oldest first: unprotected ones, and
    /// FEC-protected ones. Entries of acknowledged segments stay, and are ignored.
    flights: [VecDeque<Flight>; 2],
    /// Segments that are too old but not yet covered by a report; with their packet numbers.
    undecided: BTreeMap<u64, u64>,
    lost: BTreeSet<u64>,
    copies: Copies,
    in_flight: InFlight,
    highest: Option<u64>,
    /// Creation time of the newest report, by the receiver's clock.
    newest_us: u64,
    rtt: Rtt,
    lateness: Lateness,
    reorder: Reorder,
    guard: Guard,
    /// The carrier neither loses nor reorders packets, unless its connection fails.
    reliable: bool,
    app_limited_until: u64,
    /// The last report gave no sample, and a pause is in its span.
    spans_pause: bool,
    /// Packets sent before this give no RTT sample.
    resumed: Duration,
    /// The link's queue has drained during a silence, unless the queue was held up, too.
    drained: bool,
    /// Lateness of the last report, relative to others.
    held: Duration,
    /// Arrival time of the last report.
    reported: Duration,
    /// End of the last long silence.
    long_until: Option<Duration>,
    /// Until then, no packet is declared lost by its age alone.
    patient_until: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    number: u64,
    seq: u64,
}

/// Extra time before FEC-protected packets are declared lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guard {
    /// Later packets that must have arrived, if more than three.
    pub packets: u64,
    /// Time that must have passed.
    pub time: Duration,
}

/// Data in flight: sent, and neither acknowledged nor lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Segments.
    pub segments: u64,
    /// Bytes of their packets on the link.
    pub bytes: u64,
}

/// Effect of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Newly acknowledged segments.
    pub acked: u64,
    /// Bytes of their packets on the link.
    pub acked_bytes: u64,
    /// Segments newly declared lost.
    pub lost: u64,
    /// True if the report raises the highest packet number that has arrived.
    pub progress: bool,
    /// Path sample of the report; `None` if it contains nothing new.
    pub sample: Option<PathSample>,
}

/// An invalid report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// The report lists a packet or segment that was never sent.
    #[error("the report lists {0}, which was never sent")]
    NeverSent(u64),
    /// The report lists a packet number that was left out (RFC 9000 §21.4).
    #[error("the report lists packet {0}, whose number was left out")]
    LeftOut(u64),
    /// No report names this number as missing, though it was left out.
    #[error("no report names {0} as missing, whose number was left out")]
    NotNamed(u64),
    /// The report counts more packets than were sent.
    #[error("the report counts {0} packets, more than were sent")]
    Counts(u64),
    /// The report counts more bytes than were sent.
    #[error("the report counts {0} bytes, more than were sent")]
    Bytes(u64),
    /// The report's ranges are out of order or empty, or a gap does not lie below its highest
    /// packet.
    #[error("the report's ranges or gaps are out of order at {0}")]
    Order(u64),
}

impl ReportError {
    /// Returns true for a report by which the peer may have made the local end send more before it
    /// was found out.
    pub fn is_lie(self) -> bool {
        matches!(self, Self::LeftOut(_) | Self::NotNamed(_))
    }
}

impl<T> Delivery<T> {
    /// Creates an empty state. `rtt` is an initial estimate of the round trip time.
    pub fn new(rtt: Duration) -> Self {
        Self {
            log: Log::default(),
            segments: Segments::new(),
            kept_max: usize::MAX,
            flights: [VecDeque::new(), VecDeque::new()],
            undecided: BTreeMap::new(),
            lost: BTreeSet::new(),
            copies: Copies::default(),
            in_flight: InFlight::default(),
            highest: None,
            newest_us: 0,
            rtt: Rtt::new(rtt),
            lateness: Lateness::new(),
            reorder: Reorder::new(),
            guard: Guard::default(),
            reliable: false,
            app_limited_until: 0,
            spans_pause: false,
            resumed: Duration::ZERO,
            drained: false,
            held: Duration::ZERO,
            reported: Duration::ZERO,
            long_until: None,
            patient_until: Duration::ZERO,
        }
    }

    /// Limits the memory of unacknowledged segments to about this many bytes: beyond it the window
    /// is closed. A peer chooses how long they wait, and how much fits into one.
    pub fn with_kept_max(mut self, bytes: usize) -> Self {
        self.kept_max = bytes;
        self
    }

    /// Adds a new segment whose packet has `size` bytes on the link, and returns its number. Its
    /// content has `beyond` bytes of memory beyond its own. Must be followed by
    /// [`on_sent`](Self::on_sent).
    pub fn push(&mut self, content: T, size: usize, beyond: usize) -> u64 {
        self.segments.push(content, size, beyond)
    }

    /// Returns the number of the next packet.
    pub fn next_number(&self) -> u64 {
        self.log.next()
    }

    /// Records that a packet of `size` bytes on the link is sent, and returns its number. Call for
    /// every packet; `seq` is its segment, if any, and `coded` is true if FEC protects it.
    pub fn on_sent(&mut self, now: Duration, seq: Option<u64>, size: usize, coded: bool) -> u64 {
        let horizon = now.saturating_sub(self.rtt.smoothed() * 4 + LOG_MIN);
        let number = self.log.push(now, horizon);
        self.copies.on_packet();
        if let Some(seq) = seq {
            self.on_segment_sent(seq, Sending { number, at: now }, size, coded);
        }
        number
    }

    fn on_segment_sent(&mut self, seq: u64, sending: Sending, size: usize, coded: bool) {
        // Acknowledged in the meantime.
        let Some(segment) = self.segments.get_mut(seq) else {
            return;
        };
        if segment.flying {
            self.in_flight.remove(segment.size);
        }
        segment.on_sent(sending, size, coded);
        self.in_flight.add(size);
        let was_lost = self.lost.remove(&seq);
        self.undecided.remove(&seq);
        let flight = Flight {
            number: sending.number,
            seq,
        };
        let flights = &mut self.flights[usize::from(coded)];
        flights.push_back(flight);
        // Two at a time, so that the queue shrinks also if no report shows what is lost.
        for _ in 0..2 {
            let live = |f: &Flight| self.segments.sent_as(f.seq, f.number).is_some();
            if flights.front().is_some_and(|front| !live(front)) {
                flights.pop_front();
            }
        }
        // Behind one that is never acknowledged nor lost, those of all others would stay.
        if flights.len() > 2 * self.segments.unacked() + FLIGHTS_SLACK {
            flights.retain(|f| self.segments.sent_as(f.seq, f.number).is_some());
        }
        if was_lost {
            self.on_retransmitted(sending.at, flight);
        }
    }

    /// Returns true if the peer has reported a packet.
    pub fn is_reported(&self) -> bool {
        self.highest.is_some()
    }

    /// Returns the data in flight.
    pub fn in_flight(&self) -> InFlight {
        self.in_flight
    }

    /// Returns true if all segments are acknowledged.
    pub fn is_empty(&self) -> bool {
        self.span().0 == 0
    }

    /// Returns the number of segments from the first unacknowledged one on, and the bytes of their
    /// packets on the link.
    pub fn span(&self) -> (usize, u64) {
        self.segments.span()
    }

    /// Returns the allocated memory in bytes, without that of the segments' contents.
    #[cfg(test)]
    pub fn memory(&self) -> usize {
        let flights: usize = self.flights.iter().map(VecDeque::capacity).sum();
        self.segments.memory() + flights * size_of::<Flight>()
    }

    /// Returns the time that a sender continues without an acknowledgement of its first segment,
    /// for this spacing of reports.
    pub fn window_time(&self, spacing: Duration) -> Duration {
        self.rtt.smoothed() * WINDOW_ROUND_TRIPS + spacing * WINDOW_SPACINGS
    }

    /// Returns true if a new segment may be sent. `rate` is in bytes per second, `spacing` is that
    /// of reports; `blind` extends the window for sending into a silence.
    pub fn window_open(&self, rate: u64, spacing: Duration, blind: bool) -> bool {
        self.is_within(rate, spacing, blind, (0, 0))
    }

    /// Returns true if an urgent segment may be sent, for which the window is longer. A peer that
    /// acknowledges nothing would otherwise make the local end keep answers without limit.
    pub fn may_bypass(&self, rate: u64, spacing: Duration, blind: bool) -> bool {
        self.is_within(rate, spacing, blind, (BYPASS_SEGMENTS, BYPASS_BYTES))
    }

    /// Returns true if another segment is within the window and this many segments and bytes more.
    fn is_within(
        &self,
        rate: u64,
        spacing: Duration,
        blind: bool,
        (more, more_bytes): (usize, u64),
    ) -> bool {
        let (segments, bytes) = self.span();
        let time = self.window_time(spacing).as_secs_f64();
        let window = (rate as f64 * time) as u64 + if blind { BLIND_BYTES } else { 0 };
        // A few must always go, or nothing would move.
        let is_kept = self.segments.kept() < self.kept_max.saturating_add(more_bytes as usize);
        segments < WINDOW_SEGMENTS_MAX + more
            && (is_kept || segments < WINDOW_SEGMENTS_MIN)
            && (segments < WINDOW_SEGMENTS_MIN + more || bytes < window.saturating_add(more_bytes))
    }

    /// Returns the oldest lost segment, its content, and the time of its last transmission. The
    /// segment stays lost until it is retransmitted.
    pub fn next_resend(&mut self) -> Option<(u64, &mut T, Duration)> {
        let seq = *self.lost.first()?;
        let segment = self.segments.get_mut(seq)?;
        Some((seq, &mut segment.content, segment.last.at))
    }

    /// Returns true if a lost segment waits for retransmission.
    pub fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Replaces the content of a segment; ignored if it is acknowledged.
    pub fn replace(&mut self, seq: u64, content: T) {
        if let Some(segment) = self.segments.get_mut(seq) {
            segment.content = content;
        }
    }

    /// Returns the content of a segment, until it is acknowledged.
    pub fn content_mut(&mut self, seq: u64) -> Option<&mut T> {
        self.segments
            .get_mut(seq)
            .map(|segment| &mut segment.content)
    }

    /// Sets the extra time for FEC-protected packets.
    pub fn set_coded_guard(&mut self, guard: Guard) {
        self.guard = guard;
    }

    /// Sets whether the carrier is reliable; if so, no packet is declared lost by its age.
    pub fn set_reliable(&mut self, reliable: bool) {
        self.reliable = reliable;
    }

    /// Marks the flow as application-limited: packets in flight and the next one give no estimate
    /// of the path's rate.
    pub fn set_app_limited(&mut self) {
        self.app_limited_until = self.log.next();
    }

    /// Returns the send time of a packet, unless it is too old.
    pub fn sent_at(&self, number: u64) -> Option<Duration> {
        self.log.get(number)
    }

    /// Returns the send time of the packet `packets` after the highest one that has arrived. A
    /// report should have followed one round trip later.
    pub fn unanswered_since(&self, packets: u64) -> Option<Duration> {
        let number = self
            .highest
            .map_or(packets, |highest| highest.saturating_add(packets));
        self.log.get(number)
    }

    /// Returns the smoothed round trip time (RFC 6298), or the initial estimate.
    pub fn smoothed_rtt(&self) -> Duration {
        self.rtt.smoothed()
    }

    /// Returns the last RTT sample, or the initial estimate.
    pub fn latest_rtt(&self) -> Duration {
        self.rtt.latest()
    }

    /// Returns the recent queueing delay of the link, relative to the minimum RTT of the last 10 to
    /// 20 minutes.
    pub fn queue(&self) -> Duration {
        self.rtt.queue()
    }

    /// Returns the RTT variation (RFC 6298).
    pub fn rtt_variation(&self) -> Duration {
        self.rtt.variation()
    }

    /// Returns the minimum RTT of the last 10 to 20 s.
    pub fn min_rtt(&self) -> Duration {
        self.rtt.minimum()
    }

    /// Returns the time to wait for overtaken packets; zero unless the path reorders.
    pub fn reorder_time(&self) -> Duration {
        self.reorder.time(self.rtt.smoothed())
    }
}

impl InFlight {
    fn add(&mut self, size: usize) {
        self.segments += 1;
        self.bytes += size as u64;
    }

    fn remove(&mut self, size: usize) {
        self.segments -= 1;
        self.bytes -= size as u64;
    }
}
