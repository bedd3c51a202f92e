//! The sending side of a session: which segments have arrived, which are lost, and what to send again.
//!
//! ```text
//!            push, on_sent                     a report shows it
//!   (new) ------------------> in flight --------------------------------> acknowledged: gone
//!                              |     ^                                          ^
//!                 a report     |     | on_sent: again, under a                  |
//!                 does not     v     | new packet number                        |
//!                             lost --+------------------------------------------+
//! ```
//!
//! Every packet has a number of its own, which is never used again; every segment has one that it keeps, however
//! often it is sent. Reports speak of segments, and of the highest packet that has arrived. So any report is
//! enough to act on, whatever became of others, and nothing here needs a timer: a loss is found when a report
//! comes that shows it, and reports come for ever.
//!
//! A segment is lost if a report that speaks of it does not have it, and either
//!
//! - three later packets had arrived when the report was made (RFC 9002 §6.1.1), and the last of them was
//!   sent later by what this path reorders (as RFC 8985 does); zero until something came late; or
//! - its time is over: a round trip, a bit more, and that time again. Reports that were held on their way,
//!   by a queue or by a modem that waited for its link, are judged by when they were made.
//!
//! Packets under overcode have a longer guard, until their repairs have had their chance.

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

use log::Log;
use reorder::Reorder;
use rtt::{Lateness, Rtt};
use segments::{Segments, Sending};

use crate::path::PathSample;

/// The window is so many times what fits into a round trip. A segment may be lost six times in a row, and others
/// go on meanwhile: with four, one loss in twelve cost 6 % of the rate.
const WINDOW_ROUND_TRIPS: u32 = 8;
/// It is never less than so many segments, so that losses show on the slowest link.
const WINDOW_SEGMENTS_MIN: usize = 64;
/// Nor more: numbers are 32 bits on the wire, and this is 10 Gbit/s for a second.
const WINDOW_SEGMENTS_MAX: usize = 1 << 20;
/// Reports may come so many spacings late.
const WINDOW_SPACINGS: u32 = 3;
/// How much more may be on its way while nothing is heard and nothing stops: what then goes the first time need not go
/// when the link is back.
pub const BLIND_BYTES: u64 = 16 << 20;
/// When packets were sent is known for four round trips and this.
const LOG_MIN: Duration = Duration::from_millis(250);

/// What the sender of segments knows of them. `T` is what a segment consists of.
#[derive(Clone, Debug)]
pub struct Delivery<T> {
    log: Log,
    segments: Segments<T>,
    /// Segments in the order of their last sending, the first ones least recently: plain ones, and those under
    /// overcode. Entries are left when a segment is acknowledged, and count for nothing then.
    flights: [VecDeque<Flight>; 2],
    /// Lost as far as time goes, but no report has spoken of them; with the packets' numbers.
    undecided: BTreeMap<u64, u64>,
    lost: BTreeSet<u64>,
    in_flight: InFlight,
    highest: Option<u64>,
    /// When the newest report was made, by the receiver's clock.
    newest_us: u64,
    rtt: Rtt,
    lateness: Lateness,
    reorder: Reorder,
    guard: Guard,
    /// Packets are neither lost nor overtaken, unless their connection is.
    reliable: bool,
    app_limited_until: u64,
    /// Packets sent before are no measure of the round trip.
    resumed: Duration,
    /// The link's queue has drained in a silence, if it was not held up, too.
    drained: bool,
    /// How much later than others the last report came.
    held: Duration,
    /// When that was.
    reported: Duration,
    /// When the last long silence was over.
    long_until: Option<Duration>,
    /// Until then, no packet is lost by its age alone.
    patient_until: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    number: u64,
    seq: u64,
}

/// For how much longer packets under overcode are not taken for lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guard {
    /// So many later packets must have arrived, if that is more than three.
    pub packets: u64,
    /// So much time must have passed.
    pub time: Duration,
}

/// What has been sent and is neither acknowledged nor lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Segments.
    pub segments: u64,
    /// Bytes of their packets.
    pub bytes: u64,
}

/// What a report has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Segments that are acknowledged now.
    pub acked: u64,
    /// Bytes of their packets.
    pub acked_bytes: u64,
    /// Segments that are lost now.
    pub lost: u64,
    /// Whether the report says of a packet that it is the highest so far.
    pub progress: bool,
    /// What the report says of the path; there is none if nothing new can be learnt.
    pub sample: Option<PathSample>,
}

/// A report that makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// It has a packet or a segment that was never sent.
    #[error("the report has {0}, which was never sent")]
    NeverSent(u64),
    /// Its ranges are not in order, or empty.
    #[error("the report's ranges are out of order at {0}")]
    Order(u64),
}

impl<T> Delivery<T> {
    /// Nothing has been sent. `rtt` is a guess of the round trip time.
    pub fn new(rtt: Duration) -> Self {
        Self {
            log: Log::default(),
            segments: Segments::new(),
            flights: [VecDeque::new(), VecDeque::new()],
            undecided: BTreeMap::new(),
            lost: BTreeSet::new(),
            in_flight: InFlight::default(),
            highest: None,
            newest_us: 0,
            rtt: Rtt::new(rtt),
            lateness: Lateness::new(),
            reorder: Reorder::new(),
            guard: Guard::default(),
            reliable: false,
            app_limited_until: 0,
            resumed: Duration::ZERO,
            drained: false,
            held: Duration::ZERO,
            reported: Duration::ZERO,
            long_until: None,
            patient_until: Duration::ZERO,
        }
    }

    /// Takes a new segment; its packet has `size` bytes on the link. It must be sent next, with
    /// [`on_sent`](Self::on_sent). Its number is returned.
    pub fn push(&mut self, content: T, size: usize) -> u64 {
        self.segments.push(content, size)
    }

    /// The number that the next packet will have.
    pub fn next_number(&self) -> u64 {
        self.log.next()
    }

    /// A packet of `size` bytes on the link is sent, with the next number, which is returned. To be called for every
    /// packet; `seq` is the segment in it, if any, and `coded` says that overcode protects it.
    pub fn on_sent(&mut self, now: Duration, seq: Option<u64>, size: usize, coded: bool) -> u64 {
        let horizon = now.saturating_sub(self.rtt.smoothed() * 4 + LOG_MIN);
        let number = self.log.push(now, horizon);
        if let Some(seq) = seq {
            self.on_segment_sent(seq, Sending { number, at: now }, size, coded);
        }
        number
    }

    fn on_segment_sent(&mut self, seq: u64, sending: Sending, size: usize, coded: bool) {
        // One that is acknowledged in the meantime is nobody's concern.
        let Some(segment) = self.segments.get_mut(seq) else {
            return;
        };
        if segment.flying {
            self.in_flight.remove(segment.size);
        }
        segment.on_sent(sending, size, coded);
        self.in_flight.add(size);
        self.lost.remove(&seq);
        self.undecided.remove(&seq);
        self.flights[usize::from(coded)].push_back(Flight {
            number: sending.number,
            seq,
        });
    }

    /// What is in flight.
    pub fn in_flight(&self) -> InFlight {
        self.in_flight
    }

    /// Whether there is nothing that the receiver may lack.
    pub fn is_empty(&self) -> bool {
        self.segments.span().0 == 0
    }

    /// For how long a sender whose reports come so far apart goes on without hearing of its first segment.
    pub fn window_time(&self, spacing: Duration) -> Duration {
        self.rtt.smoothed() * WINDOW_ROUND_TRIPS + spacing * WINDOW_SPACINGS
    }

    /// Whether a new segment may be sent. `rate` is in bytes a second, `spacing` that of reports; `blind` is for a
    /// silence into which everything is sent nevertheless.
    pub fn window_open(&self, rate: u64, spacing: Duration, blind: bool) -> bool {
        let (segments, bytes) = self.segments.span();
        let time = self.window_time(spacing).as_secs_f64();
        let window = (rate as f64 * time) as u64 + if blind { BLIND_BYTES } else { 0 };
        segments < WINDOW_SEGMENTS_MAX && (segments < WINDOW_SEGMENTS_MIN || bytes < window)
    }

    /// The lost segment that goes next, the oldest first; its content, and when it was sent last. It stays lost
    /// until it is sent.
    pub fn next_resend(&mut self) -> Option<(u64, &mut T, Duration)> {
        let seq = *self.lost.first()?;
        let segment = self.segments.get_mut(seq)?;
        Some((seq, &mut segment.content, segment.last.at))
    }

    /// Whether something is lost and not sent again.
    pub fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Changes what a segment consists of; of no effect if it is acknowledged.
    pub fn replace(&mut self, seq: u64, content: T) {
        if let Some(segment) = self.segments.get_mut(seq) {
            segment.content = content;
        }
    }

    /// What a segment consists of, until it is acknowledged.
    pub fn content_mut(&mut self, seq: u64) -> Option<&mut T> {
        self.segments
            .get_mut(seq)
            .map(|segment| &mut segment.content)
    }

    /// How long packets under overcode are left to their repairs.
    pub fn set_coded_guard(&mut self, guard: Guard) {
        self.guard = guard;
    }

    /// Whether packets are carried by what loses none: then none is lost by its age.
    pub fn set_reliable(&mut self, reliable: bool) {
        self.reliable = reliable;
    }

    /// There is less to send than the rate allows: what is in flight and the next packet say nothing of how fast the path is.
    pub fn set_app_limited(&mut self) {
        self.app_limited_until = self.log.next();
    }

    /// When a packet was sent, unless it was long ago.
    pub fn sent_at(&self, number: u64) -> Option<Duration> {
        self.log.get(number)
    }

    /// When the packet was sent that is so many after the highest that has arrived: since then there should
    /// have been an answer, after a round trip.
    pub fn unanswered_since(&self, packets: u64) -> Option<Duration> {
        let number = self
            .highest
            .map_or(packets, |highest| highest.saturating_add(packets));
        self.log.get(number)
    }

    /// The round trip time, smoothed (RFC 6298); what was guessed until there is a sample.
    pub fn smoothed_rtt(&self) -> Duration {
        self.rtt.smoothed()
    }

    /// The last round trip time alone; what was guessed until there is one.
    pub fn latest_rtt(&self) -> Duration {
        self.rtt.latest()
    }

    /// How long a packet stands in the link's queue of late, as far as the round trip times of the last 10 to 20 minutes
    /// tell.
    pub fn queue(&self) -> Duration {
        self.rtt.queue()
    }

    /// How much it varies (RFC 6298).
    pub fn rtt_variation(&self) -> Duration {
        self.rtt.variation()
    }

    /// The least one of the last 10 to 20 s.
    pub fn min_rtt(&self) -> Duration {
        self.rtt.minimum()
    }

    /// For how long to wait for what has been overtaken; zero unless the path reorders.
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
