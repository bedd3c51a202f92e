//! Processing of the peer's reports in the session.

use std::time::Duration;

use super::{
    Event, PacketError, Rate, Session,
    segment::{Segment, Sent},
};
use crate::{
    arrival::Timing,
    cause::{Cause, LossEvent},
    delivery::{Guard, ReportError},
    outage::{Change, Expected, Kind, State},
    path::PathSample,
    rate::{Batch, Found, time_of},
    wire::{Data, Report, StreamId},
};

/// Round trips without copies of retransmissions after congestion and after an outage.
const CONGESTED_ROUND_TRIPS: u32 = 2;
const OUTAGE_ROUND_TRIPS: u32 = 8;

impl Session {
    /// Handles a report. Returns true if it raises the highest packet number that has arrived.
    pub(super) fn handle_report(
        &mut self,
        now: Duration,
        mut report: Report,
    ) -> Result<bool, PacketError> {
        let is_next = std::mem::replace(&mut self.is_gapless, true);
        self.skips.take_out(&mut report, is_next)?;
        if report.bytes > self.stats.bytes_sent {
            return Err(ReportError::Bytes(report.bytes).into());
        }
        // One that is out of place would hide those behind it.
        report.gaps.sort_unstable_by_key(|gap| gap.before);
        let report = &report;
        let mut acked = std::mem::take(&mut self.acked);
        let take = |segment| acked.push(segment);
        let outcome = self.delivery.on_report(now, report, take)?;
        for segment in acked.drain(..) {
            self.on_acked(&segment);
        }
        self.acked = acked;
        let highest = report.highest.filter(|_| outcome.progress);
        let message = highest.is_some_and(|at| {
            let messages = &mut self.messages;
            messages.on_arrived(now, at.number, &report.gaps, &mut self.mtu)
        });
        if outcome.progress && outcome.acked == 0 && !message {
            // The arrived packet was a report, so short packets get through.
            self.mtu.on_arrived(0);
        }
        self.losses.clear();
        if let Some(sample) = &outcome.sample {
            if !self.reliable {
                self.classify(sample, report);
            }
            self.controller.on_sample(sample, &self.losses);
            self.pacer.set_rate(now, self.controller.rate());
            if !self.losses.is_empty() {
                self.calm.on_loss(now);
            }
            self.expect(now);
            self.limit_copies(now);
        }
        let overhead = self.encoding.share();
        self.count(report);
        self.guard_coded();
        self.trace_report(overhead);
        Ok(outcome.progress)
    }

    /// Passes loss counts to FEC rate control.
    fn count(&mut self, report: &Report) {
        if self.reliable {
            return self.encoding.leave_out(report.counts);
        }
        let congested = |loss: &LossEvent| loss.cause == Cause::Congestion;
        let congested = self.losses.iter().any(congested);
        let bytes = self.mtu.size() + self.config.overhead;
        let packet = time_of(bytes as u64, self.controller.link_rate());
        self.encoding.on_counts(report.counts, congested, packet);
    }

    /// Limits copies of retransmissions. For some round trips after an outage there are none: it
    /// takes copies, too. There are none after congestion either, as new bytes need the rate more.
    /// The exception is a link that has carried its stated rate, or a dedicated one.
    fn limit_copies(&mut self, now: Duration) {
        let is_carried = match self.config.rate {
            Rate::Dedicated(_) => true,
            Rate::Stated(_) | Rate::Auto => self.controller.found() == Some(Found::Carried),
        };
        let pause = |loss: &LossEvent| match loss.cause {
            Cause::Link => 0,
            Cause::Congestion if is_carried => 0,
            Cause::Congestion => CONGESTED_ROUND_TRIPS,
            Cause::Outage => OUTAGE_ROUND_TRIPS,
        };
        let pause = self.losses.iter().map(pause).max().unwrap_or(0);
        let until = now + self.delivery.smoothed_rtt() * pause;
        self.uncopied_until = self.uncopied_until.max(until);
        let may_copy = now >= self.uncopied_until;
        self.delivery
            .set_copies(may_copy.then(|| self.encoding.loss()));
    }

    /// Classifies the cause of packets found missing.
    fn classify(&mut self, sample: &PathSample, report: &Report) {
        let packet = match self.config.rate {
            // No other traffic shares the link.
            Rate::Dedicated(rate) => {
                let bytes = self.mtu.size() + self.config.overhead;
                Some(time_of(bytes as u64, rate))
            }
            Rate::Stated(_) | Rate::Auto => None,
        };
        let late = self.delivery.reorder_time().as_micros();
        let late = u64::try_from(late).unwrap_or(u64::MAX);
        let settled = sample.received_us.saturating_sub(late);
        self.classifier.on_gaps(
            &report.gaps,
            packet,
            settled,
            |number| self.delivery.sent_at(number),
            |event| self.losses.push(event),
        );
        self.classifier.on_sample(sample);
        for loss in &self.losses {
            self.messages.on_lost(loss, &mut self.mtu);
        }
    }

    /// Updates everything that depends on the round trip time or the rate: the spacing of reports,
    /// the maximum packet, and the silence limit.
    pub(super) fn expect(&mut self, now: Duration) {
        let rtt = self.delivery.smoothed_rtt();
        let rate = self.controller.safe_rate();
        let [ours, back] = self.config.report_rates(rate, rtt);
        let timing = |rate| Timing {
            rtt,
            rate: Some(rate),
        };
        let batch = Batch::for_path(rtt, self.calm.is_calm(now));
        self.pacer.set_batch(batch.within(self.suitable_wait(now)));
        self.arrivals.set_timing(timing(ours));
        self.mtu.suit(self.config.longest_packet(rate));
        self.spacing = timing(self.config.return_rate.unwrap_or(rate)).spacing();
        let bytes = (self.config.packet_max + self.config.overhead) as u64;
        self.silence.set_expected(&Expected {
            reports: timing(back),
            packet: time_of(bytes, self.controller.link_rate().min(back)),
            queue: self.delivery.queue(),
        });
    }

    /// Handles a change of the link's state.
    pub(super) fn report_change(&mut self, now: Duration, change: Option<Change>) {
        self.trace.at(now);
        match change {
            None => {}
            Some(Change::Down) => {
                self.stats.outages += 1;
                self.controller.on_outage(now);
                self.unheard = match self.silence.state() {
                    State::Up => false,
                    State::Silent { kind, .. } | State::Stopped { kind, .. } => {
                        kind != Kind::Unanswered
                    }
                };
                self.events.push_back(Event::LinkDown);
            }
            Some(Change::Up) => {
                // If only the local end's packets were lost, they may have been too long.
                let unheard = std::mem::take(&mut self.unheard);
                if unheard {
                    self.mtu.on_outage(now);
                }
                self.delivery.resume(now);
                let rtt = self.delivery.smoothed_rtt();
                if unheard && self.silence.was_long(now, rtt) {
                    self.delivery.resume_after_long(now);
                }
                self.controller.on_resume(now);
                self.pacer.set_rate(now, self.controller.rate());
                self.events.push_back(Event::LinkUp);
            }
        }
    }

    /// Returns the maximum time for an answer.
    pub(super) fn patience(&self) -> Duration {
        let there_and_back = self.delivery.smoothed_rtt() + self.delivery.rtt_variation() * 4;
        // A packet waits at the peer, and the report that answers it waits here.
        there_and_back + self.longest_wait() * 2 + self.spacing
    }

    fn on_acked(&mut self, segment: &Segment) {
        self.mtu.on_arrived(segment.len);
        for sent in &segment.parts {
            match *sent {
                Sent::Data(data) => self.on_data_acked(data),
                Sent::Open(stream, _) => self.on_opening_acked(stream),
                Sent::Reset(..)
                | Sent::Credit(_)
                | Sent::Hold(_)
                | Sent::SessionCredit
                | Sent::Reclass(_) => {}
            }
        }
    }

    fn on_opening_acked(&mut self, stream: StreamId) {
        if self.openings.remove(&stream).is_some()
            && let Some(until) = self.streams.acked(stream)
        {
            self.report_acked(stream, until);
        }
    }

    /// Records acknowledged data. Data on a stream whose opening is not yet acknowledged counts
    /// only afterwards: until then it belongs to no flow at the peer, and is lost with the session.
    fn on_data_acked(&mut self, data: Data) {
        let stream = data.stream;
        if let Some(until) = self.streams.on_acked(data)
            && !self.openings.contains_key(&stream)
        {
            self.report_acked(stream, until);
        }
        self.close_if_over(stream);
    }

    /// Sets the time for which losses are left to FEC: until as many repair packets have arrived as
    /// may be needed.
    fn guard_coded(&mut self) {
        let share = self.encoding.share();
        let packets = if share > 0.0 {
            (4.0 / share).min(400.0) as u64
        } else {
            0
        };
        self.delivery.set_coded_guard(Guard {
            packets,
            time: Duration::ZERO,
        });
    }
}
