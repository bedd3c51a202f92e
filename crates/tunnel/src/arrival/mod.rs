//! The receiving side of a session: what has arrived, and when to report it.
//!
//! ```text
//!   packets that ask for a report   -> a report after a spacing; at once after a silence, or when asked
//!   hosts' packets, never repeated  -> a report in a quarter of a round trip, and seldom enough for the way it goes
//!   others, as reports are          -> a report in two round trips
//!   nothing is sent, for any reason -> a beacon, which is a report: for ever, and at the same pace
//! ```
//!
//! Both ends do this of their own accord; nobody waits to be asked.

mod gaps;
mod spacing;
#[cfg(test)]
mod tests;

use std::{ops::Range, time::Duration};

use fec::control::{Counts, LossMeter, MeterConfig};
use gaps::Gaps;
use spacing::Paces;
pub use spacing::{IDLE_AFTER, IDLE_BEACON, Timing};

use crate::{
    ranges::RangeSet,
    wire::{Gap, Highest, Report, Span},
};

/// Ranges in a report. More would not make anything faster, as reports are many.
pub const RANGES_MAX: usize = 60;
/// So many ranges of segments are kept; a peer that leaves more holes must send again.
const KEPT_MAX: usize = 1 << 16;
/// Segments further ahead than this are not taken: no sender's window is as long.
const AHEAD_MAX: u64 = 1 << 30;

/// A packet that has arrived for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Its number.
    pub number: u64,
    /// Its length on the wire, without IP and UDP.
    pub datagram: usize,
    /// Whether the network marked it.
    pub marked: bool,
    /// What it asks for.
    pub asks: Asks,
}

/// How soon the peer needs to know that a packet has arrived, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Asks {
    /// There is nothing in it but reports and padding.
    Nothing,
    /// Packets of hosts, which do not go again: what was lost counts, and which it was does not.
    Later,
    /// Anything else.
    Soon,
}

/// What the receiver of segments knows of them.
#[derive(Clone, Debug)]
pub struct Arrivals {
    timing: Timing,
    /// What follows from it, which is asked for with every packet.
    paces: Paces,
    idle: bool,
    stated: bool,
    /// What a beacon cost the link, the last one.
    beacon_bytes: u64,
    highest: Option<(u64, Duration)>,
    packets: u64,
    bytes: u64,
    marked: u64,
    below: u64,
    /// Segments at or above `below`.
    received: RangeSet,
    refused: u64,
    gaps: Gaps,
    meter: LossMeter,
    counts: Counts,
    /// Packets since the last report that ask for one.
    asking: u32,
    /// Those that ask for one later.
    patient: u32,
    /// Others.
    others: u32,
    /// The next report is to go as soon as may be.
    at_once: bool,
    last_arrival: Duration,
    last_report: Duration,
    last_sent: Duration,
    /// Where the next sweep over ranges goes on, if there are too many for a report.
    sweep: u64,
    newest_next: bool,
}

impl Arrivals {
    /// Nothing has arrived by `now`.
    pub fn new(timing: Timing, now: Duration) -> Self {
        Self {
            timing,
            paces: timing.paces(spacing::beacon_bytes()),
            idle: false,
            stated: false,
            beacon_bytes: spacing::beacon_bytes(),
            highest: None,
            packets: 0,
            bytes: 0,
            marked: 0,
            below: 0,
            received: RangeSet::default(),
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

    /// From now on reports keep to this pace.
    pub fn set_timing(&mut self, timing: Timing) {
        self.paces = timing.paces(self.beacon_bytes);
        self.timing = timing;
    }

    /// Whether both ends state their rates, so that nobody measures by what is reported; at first it is held that one does.
    #[must_use]
    pub fn with_rates_stated(self, stated: bool) -> Self {
        Self { stated, ..self }
    }

    /// The time between two reports while packets arrive.
    pub fn spacing(&self) -> Duration {
        self.paces.spacing
    }

    /// Whether there are no streams, so that beacons are rare.
    pub fn set_idle(&mut self, idle: bool) {
        self.idle = idle;
    }

    /// Takes a packet. `silence` is after how long without packets what is missing was not lost by chance.
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

    /// A segment has arrived, in a packet or restored by overcode: whether it is new. One that is not must not be
    /// delivered: it has been, or it will be sent again.
    pub fn on_segment(&mut self, seq: u64) -> bool {
        let full = self.received.runs_len() >= KEPT_MAX && seq != self.below;
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

    /// Packets that were looked for, those of them that are missing, and bursts of these, since the session began.
    pub fn counts(&self) -> [u64; 3] {
        let counts = &self.counts;
        [counts.packets(), counts.lost(), counts.bursts()]
    }

    /// The lowest segment that has not arrived: what the numbers of others are near to.
    pub fn below(&self) -> u64 {
        self.below
    }

    /// The highest packet number that has arrived.
    pub fn highest(&self) -> Option<u64> {
        self.highest.map(|(number, _)| number)
    }

    /// Segments that were not taken, as too much was missing before them.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// The peer asks for a report.
    pub fn ask(&mut self) {
        self.asking = self.asking.saturating_add(1);
        self.at_once = true;
    }

    /// Something was sent, which is a sign of life. If it held a report, `report` is what that alone would have cost the link.
    pub fn on_sent(&mut self, now: Duration, report: Option<usize>) {
        self.last_sent = now;
        if let Some(bytes) = report {
            self.beacon_bytes = bytes as u64;
            self.paces = self.timing.paces(self.beacon_bytes);
        }
    }

    /// Whether a report is due; it may go with other things, or alone.
    pub fn wants_report(&self, now: Duration) -> bool {
        now >= self.deadline()
    }

    /// Whether a report that goes now is a beacon: nothing has been sent for so long.
    pub fn is_beacon(&self, now: Duration) -> bool {
        now >= self.last_sent + self.beacon()
    }

    /// When a report is due if nothing else happens. There is always one.
    pub fn deadline(&self) -> Duration {
        let beacon = self.last_sent + self.beacon();
        self.pause()
            .map_or(beacon, |pause| beacon.min(self.last_report + pause))
    }

    fn beacon(&self) -> Duration {
        if self.idle {
            self.paces.beacon.max(IDLE_BEACON)
        } else {
            self.paces.beacon
        }
    }

    /// From the last report to the next, even if something is sent all the time.
    fn pause(&self) -> Option<Duration> {
        if self.at_once || self.gaps.pressing() {
            return Some(self.paces.minimum);
        }
        match (self.asking, self.patient, self.others) {
            (0, 0, 0) => None,
            // Without streams nobody needs to know of beacons sooner than by ours.
            (0, 0, _) if self.idle => None,
            (0, 0, _) => Some(self.paces.unasked),
            (0, _, _) if self.stated => Some(self.paces.patient),
            (0, _, _) => Some(self.paces.measuring),
            // A second one makes the report worth its while.
            (1, _, _) => Some(self.paces.spacing * 2),
            _ => Some(self.paces.spacing),
        }
    }

    /// Reports what has arrived.
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

    /// All ranges; or the newest ones, and in the next report some of the others in turn.
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
