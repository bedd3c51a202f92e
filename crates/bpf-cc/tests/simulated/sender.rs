//! A sender that always has data, with ideal loss detection (SACK): a lost segment leaves the
//! flight once three later segments have arrived.

use std::collections::VecDeque;

use bpf_cc::Control;

use crate::{
    cubic::Cubic,
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
    first_sent_at: Micros,
}

/// An acknowledgement of all segments that arrived before it left.
struct Acknowledgement {
    left: Micros,
    heard: Micros,
}

enum Event {
    Send,
    Hear,
    /// A probe beyond the window, whose acknowledgement reveals losses (RFC 8985).
    Probe,
    TimeOut,
}

/// A flow over a link.
pub struct Flow {
    pub socket: Socket,
    pub link: Link,
    pub now: Micros,
    /// A CUBIC model that replaces the socket's control.
    cubic: Option<Cubic>,
    /// True if acknowledgements carry time stamps.
    pub stamped: bool,
    /// Ticks of the receiver's clock per millisecond.
    pub ticks: f64,
    /// The interval in which one acknowledgement covers all arrivals, as with GRO.
    gathered: Micros,
    /// Segments in flight, in the order of sending and arrival.
    flight: VecDeque<Segment>,
    /// Numbers of lost segments that were sent before all in `flight` and count as in flight, too.
    missing: VecDeque<u32>,
    /// Acknowledgements in transit, in the order of arrival; and when the last one left.
    acknowledgements: VecDeque<Acknowledgement>,
    left_last: Micros,
    next_send: Micros,
    srtt: Micros,
    most_in_round: [u32; 2],
    round_ends: u32,
    delivered_at: Micros,
    first_sent_at: Micros,
    heard_at: Micros,
    probed: bool,
    /// Count of retransmission timeouts.
    pub timeouts: u32,
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
            cubic: None,
            stamped: true,
            ticks: 1.0,
            gathered,
            flight: VecDeque::new(),
            missing: VecDeque::new(),
            acknowledgements: VecDeque::new(),
            left_last: 0.0,
            next_send: now,
            srtt,
            most_in_round: [0; 2],
            round_ends: 0,
            delivered_at: now,
            first_sent_at: now,
            heard_at: now,
            probed: false,
            timeouts: 0,
        }
    }

    /// Creates a flow with the kernel's default control.
    pub fn cubic(link: Link) -> Self {
        let mut flow = Self::new(Control::Hybla, link, 0, 0.0);
        flow.cubic = Some(Cubic::default());
        flow.socket.view.window = 10;
        flow.socket.view.pacing_rate = u64::MAX;
        flow
    }

    /// Returns the segments delivered so far.
    pub fn delivered(&self) -> u32 {
        self.socket.view.delivered
    }

    /// Advances the flow by `time`.
    pub fn run(&mut self, time: Micros) {
        run_together(std::slice::from_mut(self), time);
    }

    fn in_flight(&self) -> u32 {
        (self.flight.len() + self.missing.len()) as u32
    }

    /// Returns the next event and its time.
    fn next(&self) -> (Micros, Event) {
        let may_send = self.in_flight() < self.socket.view.window;
        let send = may_send.then_some(self.next_send.max(self.now));
        let hear = self.acknowledgements.front().map(|ack| ack.heard);
        let silent = self.heard_at + 2.0 * self.srtt;
        let give_up = (silent + if self.probed { 200e3 } else { 5e3 }).max(self.now);
        match (send, hear) {
            (Some(at), None) => (at, Event::Send),
            (Some(at), Some(heard)) if at <= heard => (at, Event::Send),
            (_, Some(heard)) if heard < give_up => (heard, Event::Hear),
            _ if !self.probed => (give_up, Event::Probe),
            _ => (give_up, Event::TimeOut),
        }
    }

    fn step(&mut self) {
        match self.next() {
            (at, Event::Send) => self.send(at),
            (at, Event::Hear) => self.hear(at),
            (at, Event::Probe) => {
                self.probed = true;
                self.send(at);
            }
            (at, Event::TimeOut) => self.time_out(at),
        }
    }

    /// Moves lost segments at the head of the flight to `missing`.
    fn set_missing_aside(&mut self) {
        while self.flight.front().is_some_and(|s| s.arrives.is_none()) {
            let segment = self.flight.pop_front();
            self.missing.extend(segment.map(|segment| segment.number));
        }
    }

    /// Removes arrived segments from the flight; returns their number and the last one.
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

    /// Returns how many missing segments are detected as lost once `newest` has arrived.
    fn find_missing(&mut self, newest: u32) -> u32 {
        let before = self.missing.len();
        self.missing.retain(|number| number + REORDERING > newest);
        (before - self.missing.len()) as u32
    }

    fn send(&mut self, at: Micros) {
        self.now = at;
        if self.in_flight() == 0 {
            (self.delivered_at, self.first_sent_at, self.heard_at) = (at, at, at);
        }
        let arrives = self.link.carry(at);
        if let Some(arrived) = arrives.filter(|arrived| *arrived > self.left_last) {
            self.left_last = arrived + self.gathered;
            let heard = self.link.answer(self.left_last);
            self.acknowledgements
                .extend(heard.map(|heard| Acknowledgement {
                    left: self.left_last,
                    heard,
                }));
        }
        let view = &mut self.socket.view;
        self.flight.push_back(Segment {
            number: view.sent,
            sent_at: at,
            arrives,
            delivered_before: view.delivered,
            delivered_before_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
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
        self.probed = false;
        let before = self.in_flight();
        let Some(acknowledgement) = self.acknowledgements.pop_front() else {
            return;
        };
        let (acked, Some(last)) = self.take_arrived(acknowledgement.left) else {
            return;
        };
        let lost = self.find_missing(last.number);
        let rtt = at - last.sent_at;
        let in_flight = self.in_flight();

        self.srtt += (rtt - self.srtt) / 8.0;
        self.delivered_at = at;
        self.first_sent_at = last.sent_at;
        let view = &mut self.socket.view;
        view.delivered += acked;
        (view.acked, view.lost) = (acked, lost);
        view.now_us = at as u64;
        view.rtt_us = rtt as u32;
        view.srtt_us = (self.srtt * 8.0) as u32;
        view.prior_delivered = last.delivered_before;
        let sending = last.sent_at - last.first_sent_at;
        view.interval_us = sending.max(at - last.delivered_before_at) as u64;
        view.delivered_at_us = at as u64;
        view.in_flight = in_flight;
        // The receiver's clock has another origin.
        view.stamp_ms = if self.stamped {
            ((acknowledgement.left / 1e3 * self.ticks) as u64 + 0xffff_0000) as u32
        } else {
            0
        };
        if last.delivered_before >= self.round_ends {
            self.round_ends = view.delivered;
            self.most_in_round = [before, self.most_in_round[0]];
        }
        view.most_in_flight = self.most_in_round[0].max(self.most_in_round[1]);
        if let Some(cubic) = &mut self.cubic {
            view.window = cubic.acknowledge(view);
            return;
        }
        if view.state == LOSS {
            self.socket.enter(OPEN);
        }
        self.socket.acknowledge();
    }

    /// Handles a retransmission timeout: all in flight is lost, and one segment probes.
    fn time_out(&mut self, at: Micros) {
        self.now = at;
        self.heard_at = at;
        self.timeouts += 1;
        self.flight.clear();
        self.missing.clear();
        self.next_send = at;
        self.socket.view.now_us = at as u64;
        if let Some(cubic) = &mut self.cubic {
            cubic.time_out(&self.socket.view);
        } else {
            self.socket.enter(LOSS);
        }
        self.socket.view.window = 1;
    }
}

/// Advances flows that share the link of the first by `time`.
pub fn run_together(flows: &mut [Flow], time: Micros) {
    let end = flows[0].now + time;
    loop {
        let next = |flow: &Flow| flow.next().0;
        let times = flows.iter().map(next).enumerate();
        let Some((first, at)) = times.min_by(|a, b| a.1.total_cmp(&b.1)) else {
            return;
        };
        if at >= end {
            break;
        }
        let (owner, others) = flows.split_at_mut(1);
        if first == 0 {
            owner[0].step();
        } else {
            let flow = &mut others[first - 1];
            std::mem::swap(&mut owner[0].link, &mut flow.link);
            flow.step();
            std::mem::swap(&mut owner[0].link, &mut flow.link);
        }
    }
    for flow in flows {
        flow.now = flow.now.max(end);
    }
}
