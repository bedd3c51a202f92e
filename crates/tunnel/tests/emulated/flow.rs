//! Flow under test: sends at the measured rate, and receives reports.

use std::{collections::VecDeque, time::Duration};

use tunnel::{
    cause::Classifier,
    path::PathSample,
    rate::{Batch, Controller, ControllerConfig, Pacer},
    session::Rate,
};
use winkemu_link::Nanos;

use super::{
    PACKET, nanos,
    receiver::{Receiver, Report},
};

pub struct Flow {
    start: Nanos,
    back: Nanos,
    controller: Controller,
    classifier: Classifier,
    pacer: Pacer,
    sent: Vec<Duration>,
    receiver: Receiver,
    reports: VecDeque<(Nanos, Report)>,
    pub log: Vec<(f64, String)>,
}

impl Flow {
    pub fn new(rate: Rate, rtt: Duration, start: Nanos) -> Self {
        let config = ControllerConfig {
            rate,
            rtt,
            packet: PACKET as u64,
            overhead: 0,
            remembered: None,
        };
        let controller = Controller::new(&config, Duration::from_nanos(start));
        // Two packet times at 2 Mbit/s are above RTT/16 where RTT is 20 ms; the session knows its
        // rate.
        let spacing = nanos(rtt / 16).max(1_000_000);
        Self {
            start,
            back: nanos(rtt) / 2,
            pacer: Pacer::new(controller.rate(), Batch::default()),
            controller,
            classifier: Classifier::new(),
            sent: Vec::new(),
            receiver: Receiver::new(spacing),
            reports: VecDeque::new(),
            log: Vec::new(),
        }
    }

    pub fn on_arrival(&mut self, now: Nanos, number: u64, bytes: u64) {
        self.receiver.on_packet(now, number, bytes);
    }

    pub fn deadline(&self) -> Option<Nanos> {
        let send = nanos(self.pacer.deadline()).max(self.start);
        let report = self.reports.front().map(|report| report.0);
        [Some(send), report, self.receiver.deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Returns the number of the next packet, if one may be sent now.
    pub fn poll(&mut self, now: Nanos) -> Option<u64> {
        if let Some(report) = self.receiver.poll(now) {
            self.reports.push_back((now + self.back, report));
        }
        while self.reports.front().is_some_and(|report| report.0 <= now) {
            let (_, report) = self.reports.pop_front()?;
            self.on_report(Duration::from_nanos(now), &report);
        }
        let time = Duration::from_nanos(now);
        if now < self.start || !self.pacer.may_send(time) {
            return None;
        }
        self.controller.on_sent(time, PACKET as u64);
        self.pacer.set_rate(time, self.controller.rate());
        self.pacer.on_sent(time, PACKET as u64);
        self.sent.push(time);
        Some(self.sent.len() as u64 - 1)
    }

    fn on_report(&mut self, now: Duration, report: &Report) {
        let held = Duration::from_nanos(report.made - report.arrived);
        let sent_at = self.sent[report.number as usize];
        let sample = PathSample {
            now,
            number: report.number,
            sent_at,
            received_us: report.arrived / 1000,
            rtt: now - sent_at - held,
            packets: report.packets,
            bytes: report.bytes,
            marked: 0,
            sent_packets: report.number + 1,
            app_limited: false,
        };
        let mut losses = Vec::new();
        let sent = &self.sent;
        self.classifier.on_gaps(
            &report.gaps,
            None,
            u64::MAX,
            |number| sent.get(number as usize).copied(),
            |event| losses.push(event),
        );
        self.classifier.on_sample(&sample);
        self.controller.on_sample(&sample, &losses);
        self.pacer.set_rate(now, self.controller.rate());
        self.note(now, &losses);
    }

    fn note(&mut self, now: Duration, losses: &[tunnel::cause::LossEvent]) {
        let Controller::Measured(auto) = &self.controller else {
            return;
        };
        let causes: Vec<_> = losses
            .iter()
            .map(|event| (event.cause, event.packets))
            .collect();
        self.log
            .push((now.as_secs_f64(), format!("{} {causes:?}", auto.state())));
    }
}
