//! Receiving side of a session: received segments, and timing of reports.
//!
//! ```text
//!   packets that ask for a report   -> a report after a spacing; at once after silence or if asked
//!   datagrams, never retransmitted  -> a report in a quarter of a round trip, limited by the rate
//!   others, e.g. reports            -> a report in two round trips
//!   nothing sent, for any reason    -> a beacon, which is a report: for ever, and at the same pace
//! ```
//!
//! Both ends report on their own; neither waits for a request.

mod gaps;
mod spacing;
#[cfg(test)]
mod tests;

use std::{ops::Range, time::Duration};

use fec::control::{Counts, LossMeter, MeterConfig};
use gaps::Gaps;
use spacing::Paces;
pub use spacing::{IDLE_AFTER, IDLE_BEACON, PEER_RESTS_AFTER, REST_AFTER, REST_BEACON, Timing};

use crate::{
    ranges::RangeSet,
    wire::{Gap, Highest, Report, Span},
};

/// Maximum ranges in a report. More would bring nothing, as reports are frequent.
pub const RANGES_MAX: usize = 60;
/// Maximum ranges of segments kept, whatever the session's credit; a peer that leaves more holes
/// must retransmit.
const KEPT_MAX: usize = 1 << 16;
/// Segments further ahead than this are rejected: no sender's window is as long.
const AHEAD_MAX: u64 = 1 << 30;

/// A packet that has arrived for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Packet number.
    pub number: u64,
    /// Length on the wire, without IP and UDP.
    pub datagram: usize,
    /// True if the network marked it.
    pub marked: bool,
    /// Urgency of a report for it.
    pub asks: Asks,
}

/// Urgency of reporting a packet, in rising order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Asks {
    /// Contains only reports and padding.
    Nothing,
    /// Datagrams, which are never retransmitted: the number of losses matters, their identity does
    /// not.
    Later,
    /// Anything else.
    Soon,
}

/// Receiver's state of all segments.
#[derive(Clone, Debug)]
pub struct Arrivals {
    timing: Timing,
    /// Paces derived from the timing, needed for every packet.
    paces: Paces,
    idle: bool,
    rests: bool,
    stated: bool,
    follows: bool,
    /// Bytes of the last beacon on the link.
    beacon_bytes: u64,
    highest: Option<(u64, Duration)>,
    packets: u64,
    bytes: u64,
    marked: u64,
    below: u64,
    /// Segments at or above `below`.
    received: RangeSet,
    /// Maximum ranges of these.
    ranges_max: usize,
    refused: u64,
    gaps: Gaps,
    meter: LossMeter,
    counts: Counts,
    /// Packets since the last report that ask for one.
    asking: u32,
    /// Packets that ask for a later one.
    patient: u32,
    /// Other packets.
    others: u32,
    /// The next report must go as soon as possible.
    at_once: bool,
    last_arrival: Duration,
    last_report: Duration,
    last_sent: Duration,
    /// Start of the next sweep over ranges, if there are too many for a report.
    sweep: u64,
    newest_next: bool,
}

impl Arrivals {
    /// Creates an empty state at `now`.
    pub fn new(timing: Timing, now: Duration) -> Self {
        Self {
            timing,
            paces: timing.paces(spacing::beacon_bytes()),
            idle: false,
            rests: false,
            stated: false,
            follows: false,
            beacon_bytes: spacing::beacon_bytes(),
            highest: None,
            packets: 0,
            bytes: 0,
            marked: 0,
            below: 0,
            received: RangeSet::default(),
            ranges_max: KEPT_MAX,
            refused: 0,
            gaps: Gaps::default(),
            meter: LossMeter::new(MeterConfig::default()),
            counts: Counts::default(),
            asking: 0,
            patient: 0,
            others: 0,
            at_once: false,
            last_arrival: now,
            last_report: now,
            last_sent: now,
            sweep: 0,
            newest_next: false,
        }
    }

    /// Sets the timing of reports.
    pub fn set_timing(&mut self, timing: Timing) {
        self.paces = timing.paces(self.beacon_bytes);
        self.timing = timing;
    }

    /// Sets whether both ends state their rates, so that no rate measurement depends on reports.
    /// Default: one or both measure.
    #[must_use]
    pub fn with_rates_stated(self, stated: bool) -> Self {
        Self { stated, ..self }
    }

    /// Sets whether beacons of an idle session answer those of the peer, so that both cost one
    /// wake-up. Exactly one of the ends should do so. Default: none does.
    #[must_use]
    pub fn with_beacons_following(self, follows: bool) -> Self {
        Self { follows, ..self }
    }

    /// Returns the time between two reports while packets arrive.
    pub fn spacing(&self) -> Duration {
        self.paces.spacing
    }

    /// Sets whether there are no streams, so that beacons are rare.
    pub fn set_idle(&mut self, idle: bool) {
        self.idle = idle;
    }

    /// Sets whether there have been no streams for so long that beacons are even rarer.
    pub fn set_rests(&mut self, rests: bool) {
        self.rests = rests;
    }

    /// Handles a packet. After a pause longer than `silence`, missing packets count as lost in an
    /// outage, not by chance.
    pub fn on_packet(&mut self, now: Duration, packet: &Arrived, silence: Duration) {
        self.packets += 1;
        self.bytes += packet.datagram as u64;
        self.marked += u64::from(packet.marked);
        let silent = now.saturating_sub(self.last_arrival) > silence;
        self.last_arrival = now;
        self.count(packet.number, silent);
        self.place(now, packet.number);
        let count = match packet.asks {
            Asks::Soon => &mut self.asking,
            Asks::Later => &mut self.patient,
            Asks::Nothing => &mut self.others,
        };
        *count = count.saturating_add(1);
        self.at_once |= silent && packet.asks > Asks::Nothing;
        let is_soon = now >= self.last_sent + self.beacon() / 2;
        self.at_once |= self.idle && self.follows() && is_soon;
    }

    fn count(&mut self, number: u64, silent: bool) {
        let Self { meter, counts, .. } = self;
        if let Some((highest, _)) = self.highest.filter(|_| silent) {
            meter.leave_out(highest.saturating_add(1)..number, |run| {
                *counts += run.into();
            });
        }
        meter.on_packet(number, |run| *counts += run.into());
    }

    fn place(&mut self, now: Duration, number: u64) {
        let now_us = micros(now);
        match self.highest {
            Some((highest, _)) if number < highest => return self.gaps.fill(number, now_us),
            Some((highest, arrived)) if number > highest + 1 => self.gaps.push(Gap {
                before: highest,
                missing: number - highest - 1,
                before_us: micros(arrived),
                after_us: now_us,
            }),
            _ => {}
        }
        self.highest = Some((number, now));
    }

    /// Sets the maximum number of separate ranges of segments to keep, if it is below 65,536.
    pub fn set_ranges_max(&mut self, max: usize) {
        self.ranges_max = max.min(KEPT_MAX);
    }

    /// Records a segment that arrived or was restored by FEC; returns true if it is new. Others
    /// must not be delivered: they are duplicates, or the peer retransmits them.
    pub fn on_segment(&mut self, seq: u64) -> bool {
        let full = self.received.runs_len() >= self.ranges_max
            && seq > self.below
            && !self.received.touches(seq..seq + 1);
        if seq >= self.below.saturating_add(AHEAD_MAX) || full {
            self.refused += 1;
            return false;
        }
        if seq == self.below && self.received.runs_len() == 0 {
            self.below += 1;
            return true;
        }
        if seq < self.below || !self.received.insert(seq) {
            return false;
        }
        if let Some(end) = self.received.take_run_at(self.below) {
            self.below = end;
        }
        true
    }

    /// Returns the number of separate ranges of segments kept.
    #[cfg(test)]
    pub fn ranges_len(&self) -> usize {
        self.received.runs_len()
    }

    /// Returns counts since the session began: packets examined, missing packets, and loss bursts.
    pub fn counts(&self) -> [u64; 3] {
        let counts = &self.counts;
        [counts.packets(), counts.lost(), counts.bursts()]
    }

    /// Returns the lowest missing segment, the reference for expanding truncated numbers.
    pub fn below(&self) -> u64 {
        self.below
    }

    /// Returns the highest packet number that has arrived.
    pub fn highest(&self) -> Option<u64> {
        self.highest.map(|(number, _)| number)
    }

    /// Returns the number of segments rejected because too much was missing before them.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Handles the peer's request for a report.
    pub fn ask(&mut self) {
        self.asking = self.asking.saturating_add(1);
        self.at_once = true;
    }

    /// Records that something was sent, which is a sign of life. `report` is the cost of a
    /// contained report alone, in bytes on the link.
    pub fn on_sent(&mut self, now: Duration, report: Option<usize>) {
        self.last_sent = now;
        if let Some(bytes) = report {
            self.beacon_bytes = bytes as u64;
            self.paces = self.timing.paces(self.beacon_bytes);
        }
    }

    /// Returns true if a report is due, alone or with other frames.
    pub fn wants_report(&self, now: Duration) -> bool {
        now >= self.deadline()
    }

    /// Returns true if a report sent now is a beacon: nothing has been sent for that long.
    pub fn is_beacon(&self, now: Duration) -> bool {
        now >= self.last_sent + self.beacon()
    }

    /// Returns when a report is due if nothing else happens. Always set.
    pub fn deadline(&self) -> Duration {
        let beacon = self.last_sent + self.beacon();
        self.pause()
            .map_or(beacon, |pause| beacon.min(self.last_report + pause))
    }

    fn beacon(&self) -> Duration {
        if !self.idle {
            return self.paces.beacon;
        }
        let rare = if self.rests { REST_BEACON } else { IDLE_BEACON };
        let beacon = self.paces.beacon.max(rare);
        // Later than the peer's, which it answers.
        beacon + beacon / 4 * u32::from(self.follows())
    }

    /// Returns true if beacons answer those of the peer. Where the rate makes them rarer, they keep
    /// their share of it.
    fn follows(&self) -> bool {
        self.follows && self.paces.beacon <= IDLE_BEACON
    }

    /// Returns the time from the last report to the next while other data is sent.
    fn pause(&self) -> Option<Duration> {
        if self.at_once || self.gaps.pressing() {
            return Some(self.paces.minimum);
        }
        match (self.asking, self.patient, self.others) {
            (0, 0, 0) => None,
            // Without streams, no end needs to learn of beacons before the next own beacon.
            (0, 0, _) if self.idle => None,
            (0, 0, _) => Some(self.paces.unasked),
            (0, _, _) if self.stated => Some(self.paces.patient),
            (0, _, _) => Some(self.paces.measuring),
            // A second packet makes the report worthwhile.
            (1, _, _) => Some(self.paces.spacing * 2),
            _ => Some(self.paces.spacing),
        }
    }

    /// Creates a report of everything that has arrived.
    pub fn report(&mut self, now: Duration) -> Report {
        self.last_report = now;
        (self.asking, self.patient, self.others) = (0, 0, 0);
        self.at_once = false;
        let (span, ranges) = self.ranges();
        Report {
            highest: self.highest.map(|(number, arrived)| Highest {
                number,
                arrived_us: micros(arrived),
                held_us: micros(now).saturating_sub(micros(arrived)),
            }),
            packets: self.packets,
            bytes: self.bytes,
            marked: self.marked,
            below: self.below,
            span,
            ranges,
            gaps: self.gaps.take(),
            counts: self.counts(),
        }
    }

    /// Returns all ranges; or the newest ones, and in the next report some of the others in turn.
    fn ranges(&mut self) -> (Span, Vec<Range<u64>>) {
        if self.received.runs_len() <= RANGES_MAX {
            return (Span::default(), self.received.from(0).collect());
        }
        self.newest_next = !self.newest_next;
        if self.newest_next {
            let mut ranges: Vec<_> = self.received.descending().take(RANGES_MAX).collect();
            ranges.reverse();
            let from = ranges.first().map_or(0, |range| range.start);
            return (
                Span {
                    from,
                    until: u64::MAX,
                },
                ranges,
            );
        }
        self.sweep()
    }

    fn sweep(&mut self) -> (Span, Vec<Range<u64>>) {
        let from = if self.sweep <= self.below {
            0
        } else {
            self.sweep
        };
        let ranges: Vec<_> = self.received.from(from).take(RANGES_MAX).collect();
        let full = ranges.len() == RANGES_MAX;
        let until = ranges
            .last()
            .filter(|_| full)
            .map_or(u64::MAX, |range| range.end);
        self.sweep = if full { until } else { 0 };
        (Span { from, until }, ranges)
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
