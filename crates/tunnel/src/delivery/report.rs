//! Processing of reports.

use std::time::Duration;

use super::{
    Delivery, Flight, Outcome, ReportError,
    reorder::{self, Front},
    segments::{Segment, Sending},
};
use crate::{path::PathSample, wire::Report};

/// Rule for declaring packets lost.
struct Rule {
    /// Number of later packets that have arrived,
    packets: u64,
    /// minimum send time of the last of them after the packet,
    time: Duration,
    /// or maximum send time of the packet itself.
    sent_by: Option<Duration>,
}

impl Rule {
    fn is_over(&self, sending: Sending, front: &Front) -> bool {
        front.overtook(sending, self.packets, self.time)
            || self.sent_by.is_some_and(|by| sending.at <= by)
    }
}

impl<T> Delivery<T> {
    /// Handles a report, and passes the contents of newly acknowledged segments to `acked`.
    ///
    /// # Errors
    ///
    /// The report is invalid. Nothing has changed then.
    pub fn on_report(
        &mut self,
        now: Duration,
        report: &Report,
        acked: impl FnMut(T),
    ) -> Result<Outcome, ReportError> {
        self.check(report)?;
        let created_us = report
            .highest
            .map(|highest| highest.arrived_us.saturating_add(highest.held_us));
        if let Some(us) = created_us {
            (self.held, self.reported) = (self.lateness.on_report(now, us), now);
            if std::mem::take(&mut self.drained) && !self.was_held() {
                self.rtt.drain();
            }
            self.expect_held();
        }
        let as_of = now.saturating_sub(self.held);
        let sample = self.take_sample(now, report);
        let sent_at = report
            .highest
            .and_then(|highest| self.log.get(highest.number));
        let front = Front::new(report, sent_at, now);
        let mut outcome = Outcome {
            progress: sample.is_some(),
            sample: sample.flatten(),
            ..Outcome::default()
        };
        // A report that was overtaken by a later one does not show what is missing.
        let newest = created_us.is_some_and(|us| us >= self.newest_us);
        let front = front.filter(|_| newest);
        self.acknowledge(now, report, front.as_ref(), &mut outcome, acked);
        if let (Some(front), Some(us)) = (front, created_us) {
            self.newest_us = us;
            outcome.lost = self.find_lost(now, &front, as_of);
            self.reorder.on_report(front);
        }
        Ok(outcome)
    }

    fn check(&self, report: &Report) -> Result<(), ReportError> {
        let highest = report.highest.map(|highest| highest.number);
        if let Some(number) = highest.filter(|number| *number >= self.log.next()) {
            return Err(ReportError::NeverSent(number));
        }
        let [counted, lost, _] = report.counts;
        let arrived = report.packets.max(counted.saturating_sub(lost));
        if counted > self.log.next() || arrived > highest.map_or(0, |highest| highest + 1) {
            return Err(ReportError::Counts(counted.max(arrived)));
        }
        for gap in &report.gaps {
            let after = gap.before.saturating_add(gap.missing).saturating_add(1);
            if highest.is_none_or(|highest| after > highest) {
                return Err(ReportError::Order(gap.before));
            }
        }
        let mut end = report.below;
        for range in &report.ranges {
            if range.start < end || range.is_empty() {
                return Err(ReportError::Order(range.start));
            }
            end = range.end;
        }
        if end > self.segments.next() {
            return Err(ReportError::NeverSent(end - 1));
        }
        Ok(())
    }

    /// Takes a path sample. The outer `None` means that the highest packet has not risen or is
    /// unknown; the inner one that no sample can be taken.
    fn take_sample(&mut self, now: Duration, report: &Report) -> Option<Option<PathSample>> {
        let highest = report.highest?;
        if self.highest.is_some_and(|known| highest.number <= known) {
            return None;
        }
        let before = self.highest.replace(highest.number);
        // The first packet after a pause may be lost: the sample of the next one spans the pause.
        let spans_pause = before.is_none_or(|before| before < self.app_limited_until);
        let app_limited = spans_pause || self.spans_pause;
        let sample = self.log.get(highest.number).and_then(|sent_at| {
            let held = Duration::from_micros(highest.held_us);
            let rtt = now.checked_sub(sent_at)?.checked_sub(held)?;
            (sent_at >= self.resumed).then_some(PathSample {
                now,
                number: highest.number,
                sent_at,
                received_us: highest.arrived_us,
                rtt,
                packets: report.packets,
                bytes: report.bytes,
                marked: report.marked,
                sent_packets: highest.number + 1,
                app_limited,
            })
        });
        self.spans_pause = app_limited && sample.is_none();
        if let Some(sample) = sample {
            self.rtt.on_sample(now, sample.rtt);
        }
        Some(sample)
    }

    fn acknowledge(
        &mut self,
        now: Duration,
        report: &Report,
        front: Option<&Front>,
        outcome: &mut Outcome,
        mut acked: impl FnMut(T),
    ) {
        let Self {
            segments,
            lost,
            undecided,
            in_flight,
            reorder,
            ..
        } = self;
        let mut on_acked = |seq: u64, segment: Segment<T>| {
            lost.remove(&seq);
            undecided.remove(&seq);
            if segment.flying {
                in_flight.remove(segment.size);
            }
            if let Some(front) = front {
                reorder.on_acked(now, front, seq, &segment);
            }
            outcome.acked += 1;
            outcome.acked_bytes += segment.size as u64;
            acked(segment.content);
        };
        segments.acknowledge(0..report.below, &mut on_acked);
        for range in &report.ranges {
            segments.acknowledge(range.clone(), &mut on_acked);
        }
    }

    pub(super) fn find_lost(&mut self, now: Duration, front: &Front, as_of: Duration) -> u64 {
        let found = self.decide_undecided(front);
        let time = self.reorder.time(self.rtt.smoothed());
        let aged = as_of.checked_sub(self.rtt.patience() + time);
        let one_way = self.rtt.smoothed() / 2;
        let outage = self.long_until.and_then(|until| until.checked_sub(one_way));
        let patient = self.reliable || now < self.patient_until;
        let plain = Rule {
            packets: reorder::PACKETS,
            time,
            sent_by: aged.max(outage).filter(|_| !patient),
        };
        let coded = Rule {
            packets: plain.packets.max(self.guard.packets),
            time: time.max(self.guard.time),
            sent_by: plain.sent_by.and_then(|by| by.checked_sub(self.guard.time)),
        };
        found + self.judge(0, front, &plain) + self.judge(1, front, &coded)
    }

    /// Applies a rule to all packets of a flight queue.
    fn judge(&mut self, flight: usize, front: &Front, rule: &Rule) -> u64 {
        let mut found = 0;
        while let Some(Flight { number, seq }) = self.flights[flight].front().copied() {
            let segment = self.segments.sent_as(seq, number);
            if segment.is_some_and(|segment| !rule.is_over(segment.last, front)) {
                break;
            }
            if segment.is_some() {
                found += self.decide(front, seq, number);
            }
            self.flights[flight].pop_front();
        }
        found
    }

    /// Decides on a segment that the rule declares lost: lost if the report covers it.
    fn decide(&mut self, front: &Front, seq: u64, number: u64) -> u64 {
        if front.covers(seq) {
            self.lose(seq)
        } else {
            self.undecided.insert(seq, number);
            0
        }
    }

    fn decide_undecided(&mut self, front: &Front) -> u64 {
        let missing: Vec<_> = front.covered(&self.undecided).collect();
        for seq in &missing {
            self.undecided.remove(seq);
        }
        missing.into_iter().map(|seq| self.lose(seq)).sum()
    }

    fn lose(&mut self, seq: u64) -> u64 {
        let Some(segment) = self.segments.get_mut(seq).filter(|segment| segment.flying) else {
            return 0;
        };
        segment.flying = false;
        segment.losses = segment.losses.saturating_add(1);
        self.in_flight.remove(segment.size);
        u64::from(self.lost.insert(seq))
    }
}
