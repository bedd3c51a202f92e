//! A sender that always has something to send, and whose losses are found perfectly (SACK): what
//! is lost is no longer in flight once three segments sent after it have arrived.

use std::collections::VecDeque;

use bpf_cc::Control;

use crate::{
    link::{Link, Micros},
    program::Socket,
};

const REORDERING: u32 = 3;
const LOSS: u32 = 4;
const OPEN: u32 = 0;

struct Segment {
    number: u32,
    sent_at: Micros,
    arrives: Option<Micros>,
    delivered_before: u32,
    delivered_before_at: Micros,
}

/// A flow over a link.
pub struct Flow {
    pub socket: Socket,
    pub link: Link,
    pub now: Micros,
    /// One acknowledgement covers what arrives within so long, as with GRO.
    gathered: Micros,
    /// In the order of sending, which is that of arrival.
    flight: VecDeque<Segment>,
    /// Numbers of lost segments that were sent before all in `flight` and count as in flight, too.
    missing: VecDeque<u32>,
    next_send: Micros,
    srtt: Micros,
    most_in_round: [u32; 2],
    round_ends: u32,
    delivered_at: Micros,
    heard_at: Micros,
}

impl Flow {
    pub fn new(control: Control, link: Link, stated_rate: u64, gathered: Micros) -> Self {
        let srtt = link.rtt + 1e6 / link.rate;
        let socket = Socket::new(control, srtt as u32, stated_rate);
        let now = socket.view.now_us as Micros;
        Self {
            socket,
            link,
            now,
            gathered,
            flight: VecDeque::new(),
            missing: VecDeque::new(),
            next_send: now,
            srtt,
            most_in_round: [0; 2],
            round_ends: 0,
            delivered_at: now,
            heard_at: now,
        }
    }

    /// Segments delivered so far.
    pub fn delivered(&self) -> u32 {
        self.socket.view.delivered
    }

    /// Lets so much time pass.
    pub fn run(&mut self, time: Micros) {
        let end = self.now + time;
        while self.now < end {
            let send = self.may_send().then_some(self.next_send.max(self.now));
            let hear = self.next_acknowledgement();
            let give_up = self.heard_at + 2.0 * self.srtt + 200_000.0;
            match (send, hear) {
                (Some(at), None) => self.send(at.min(end)),
                (Some(at), Some(heard)) if at <= heard => self.send(at),
                (_, Some(heard)) => self.hear(heard),
                (None, None) => self.time_out(give_up.max(self.now)),
            }
        }
    }

    fn in_flight(&self) -> u32 {
        (self.flight.len() + self.missing.len()) as u32
    }

    fn may_send(&self) -> bool {
        self.in_flight() < self.socket.view.window
    }

    fn next_acknowledgement(&self) -> Option<Micros> {
        let first = self.flight.iter().find_map(|segment| segment.arrives);
        first.map(|at| at + self.gathered)
    }

    /// Sets aside what is lost at the head of the flight.
    fn set_missing_aside(&mut self) {
        while self.flight.front().is_some_and(|s| s.arrives.is_none()) {
            let segment = self.flight.pop_front();
            self.missing.extend(segment.map(|segment| segment.number));
        }
    }

    /// Takes what has arrived out of the flight: how many, and the last of them.
    fn take_arrived(&mut self, at: Micros) -> (u32, Option<Segment>) {
        let mut taken = (0, None);
        self.set_missing_aside();
        let arrived = |s: &Segment| s.arrives.is_some_and(|arrives| arrives <= at);
        while self.flight.front().is_some_and(arrived) {
            taken = (taken.0 + 1, self.flight.pop_front());
            self.set_missing_aside();
        }
        taken
    }

    /// How many of the missing are found to be, once so much has arrived.
    fn find_missing(&mut self, newest: u32) -> u32 {
        let before = self.missing.len();
        self.missing.retain(|number| number + REORDERING > newest);
        (before - self.missing.len()) as u32
    }

    fn send(&mut self, at: Micros) {
        self.now = at;
        let idle = self.in_flight() == 0;
        let view = &mut self.socket.view;
        self.flight.push_back(Segment {
            number: view.sent,
            sent_at: at,
            arrives: self.link.carry(at),
            delivered_before: view.delivered,
            delivered_before_at: if idle { at } else { self.delivered_at },
        });
        view.sent += 1;
        let pace = view.mss as f64 * 1e6 / view.pacing_rate as f64;
        self.next_send = self.next_send.max(at) + pace;
        self.most_in_round[0] = self.most_in_round[0].max(self.in_flight());
        self.set_missing_aside();
    }

    fn hear(&mut self, at: Micros) {
        self.now = at;
        self.heard_at = at;
        let before = self.in_flight();
        let (acked, Some(last)) = self.take_arrived(at) else {
            return;
        };
        let lost = self.find_missing(last.number);
        let rtt = at - last.sent_at;
        let in_flight = self.in_flight();

        self.srtt += (rtt - self.srtt) / 8.0;
        self.delivered_at = at;
        let view = &mut self.socket.view;
        view.delivered += acked;
        (view.acked, view.lost) = (acked, lost);
        view.now_us = at as u64;
        view.rtt_us = rtt as u32;
        view.srtt_us = (self.srtt * 8.0) as u32;
        view.prior_delivered = last.delivered_before;
        view.interval_us = (at - last.delivered_before_at) as u64;
        view.in_flight = in_flight;
        if last.delivered_before >= self.round_ends {
            self.round_ends = view.delivered;
            self.most_in_round = [before, self.most_in_round[0]];
        }
        view.most_in_flight = self.most_in_round[0].max(self.most_in_round[1]);
        if view.state == LOSS {
            self.socket.enter(OPEN);
        }
        self.socket.acknowledge();
    }

    /// Nothing was heard for long: all in flight is lost, and one segment asks.
    fn time_out(&mut self, at: Micros) {
        self.now = at;
        self.heard_at = at;
        self.flight.clear();
        self.missing.clear();
        self.next_send = at;
        self.socket.view.now_us = at as u64;
        self.socket.enter(LOSS);
        self.socket.view.window = 1;
    }
}
