//! TCP with CUBIC as in Linux: HyStart by delay, fast convergence, Reno's region, SACK, a timeout.

use std::collections::VecDeque;

use winkemu_link::Nanos;

const BETA: f64 = 717.0 / 1024.0;
const C: f64 = 0.4;
/// Minimum retransmission timeout of Linux.
const RTO_MIN: f64 = 0.2;

/// Sender of endless data between two times. Every packet has a new number; lost data is
/// retransmitted under another.
pub struct Cubic {
    from: Nanos,
    to: Nanos,
    window: f64,
    threshold: f64,
    most: f64,
    origin: f64,
    k: f64,
    reno: f64,
    epoch: Option<f64>,
    next: u64,
    /// Packets neither acknowledged nor lost: number, send time.
    flight: VecDeque<(u64, Nanos)>,
    highest: u64,
    recover: u64,
    srtt: f64,
    rttvar: f64,
    rtt_min: f64,
    progress: Nanos,
    backoff: u32,
    /// HyStart: end of the round, minimum round trip time of its first samples, their number.
    round: (u64, f64, u32),
}

impl Cubic {
    pub fn new(from: Nanos, to: Nanos) -> Self {
        Self {
            from,
            to,
            window: 10.0,
            threshold: f64::INFINITY,
            most: 0.0,
            origin: 0.0,
            k: 0.0,
            reno: 0.0,
            epoch: None,
            next: 0,
            flight: VecDeque::new(),
            highest: 0,
            recover: 0,
            srtt: 0.0,
            rttvar: 0.0,
            rtt_min: f64::INFINITY,
            progress: 0,
            backoff: 0,
            round: (0, f64::INFINITY, 0),
        }
    }

    pub fn deadline(&self) -> Option<Nanos> {
        if self.flight.is_empty() {
            return (self.from < self.to && self.next == 0).then_some(self.from);
        }
        Some(self.progress + self.timeout())
    }

    fn timeout(&self) -> Nanos {
        let rto = if self.srtt > 0.0 {
            self.srtt + (4.0 * self.rttvar).max(RTO_MIN)
        } else {
            1.0
        };
        ((rto * 1e9) as Nanos) << self.backoff.min(6)
    }

    /// Returns the number of the next packet, if one may be sent now.
    pub fn poll(&mut self, now: Nanos) -> Option<u64> {
        if !self.flight.is_empty() && now >= self.progress + self.timeout() {
            self.on_timeout(now);
        }
        let open =
            now >= self.from && now < self.to && (self.flight.len() as f64) < self.window.floor();
        if !open {
            return None;
        }
        if self.flight.is_empty() {
            self.progress = now;
        }
        self.flight.push_back((self.next, now));
        self.next += 1;
        Some(self.next - 1)
    }

    fn on_timeout(&mut self, now: Nanos) {
        self.most = self.window;
        self.threshold = (self.window * BETA).max(2.0);
        self.window = 1.0;
        self.epoch = None;
        self.flight.clear();
        self.recover = self.next;
        self.progress = now;
        self.backoff += 1;
    }

    pub fn on_ack(&mut self, now: Nanos, number: u64) {
        let Some(place) = self.flight.iter().position(|packet| packet.0 == number) else {
            return;
        };
        let rtt = (now - self.flight[place].1) as f64 / 1e9;
        self.flight.remove(place);
        self.measure(rtt);
        self.progress = now;
        self.backoff = 0;
        self.highest = self.highest.max(number);
        let mut lost = false;
        while self
            .flight
            .front()
            .is_some_and(|packet| packet.0 + 3 <= self.highest)
        {
            let (number, _) = self.flight.pop_front().expect("one is in flight");
            lost |= number >= self.recover;
        }
        if lost {
            self.decrease();
        } else if number >= self.recover {
            self.increase(now as f64 / 1e9, rtt);
        }
    }

    fn measure(&mut self, rtt: f64) {
        self.rtt_min = self.rtt_min.min(rtt);
        if self.srtt == 0.0 {
            (self.srtt, self.rttvar) = (rtt, rtt / 2.0);
        }
        self.rttvar += ((self.srtt - rtt).abs() - self.rttvar) / 4.0;
        self.srtt += (rtt - self.srtt) / 8.0;
    }

    fn decrease(&mut self) {
        self.recover = self.next;
        let shrinking = self.window < self.most;
        self.most = self.window * if shrinking { (1.0 + BETA) / 2.0 } else { 1.0 };
        self.window = (self.window * BETA).max(2.0);
        self.threshold = self.window;
        self.epoch = None;
    }

    fn increase(&mut self, now: f64, rtt: f64) {
        if self.window < self.threshold {
            self.window += 1.0;
            return self.slow_start_may_end(rtt);
        }
        let epoch = *self.epoch.get_or_insert_with(|| {
            self.origin = self.most.max(self.window);
            self.k = ((self.origin - self.window) / C).cbrt();
            self.reno = self.window;
            now
        });
        let t = now - epoch + self.rtt_min;
        let target = self.origin + C * (t - self.k).powi(3);
        self.reno += 3.0 * (1.0 - BETA) / (1.0 + BETA) / self.window;
        let target = target.max(self.reno).min(1.5 * self.window);
        self.window += ((target - self.window) / self.window).clamp(0.01 / self.window, 0.5);
    }

    /// HyStart (Linux, tcp_cubic.c): the minimum of eight round trips of a round exceeds the
    /// overall minimum by an eighth.
    fn slow_start_may_end(&mut self, rtt: f64) {
        let (end, minimum, samples) = self.round;
        if self.highest >= end {
            self.round = (self.next, rtt, 1);
            return;
        }
        self.round = (end, minimum.min(rtt), samples + 1);
        let more = (self.rtt_min / 8.0).clamp(0.004, 0.016);
        if samples >= 8 && self.window >= 16.0 && self.round.1 > self.rtt_min + more {
            self.threshold = self.window;
        }
    }
}
