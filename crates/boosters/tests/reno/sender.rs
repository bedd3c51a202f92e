//! Both ends of TCP, reduced to congestion control: a Reno sender that always has data, with SACK
//! and without, and a receiver. Both count in segments.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Minimum retransmission timeout of Linux, not RFC 6298's second.
const RTO_MIN: Duration = Duration::from_millis(200);
/// Delay of the acknowledgement of a single segment.
const DELAYED: Duration = Duration::from_millis(40);

/// Content of an acknowledgement.
#[derive(Clone, Debug, Default)]
pub struct Ack {
    pub next: u64,
    /// Most recently extended range first.
    pub sack: Vec<(u64, u64)>,
}

/// Segment in flight or lost.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Duration,
    again: bool,
    sacked: bool,
    lost: bool,
}

/// Reno by RFC 5681, with NewReno (RFC 6582) without SACK, else with RFC 6675's pipe and RACK-TLP
/// (RFC 8985), as in Linux.
#[derive(Debug)]
pub struct Sender {
    sack: bool,
    una: u64,
    next: u64,
    sent: BTreeMap<u64, Sent>,
    pub cwnd: f64,
    ssthresh: f64,
    duplicates: u32,
    /// End of recovery; after a timeout the window grows meanwhile (`by_timeout`).
    recovery: Option<u64>,
    by_timeout: bool,
    /// Send time of the newest segment that has arrived.
    rack: Duration,
    rtt: Option<(Duration, Duration)>,
    backoff: u32,
    timer: Option<Duration>,
    probe: Option<Duration>,
    /// End of the stream when a probe was sent, and whether that repeated the last segment.
    probed: Option<(u64, bool)>,
    pub timeouts: u64,
    pub reductions: u64,
    pub again: u64,
}

impl Sender {
    pub fn new(sack: bool) -> Self {
        Self {
            sack,
            una: 0,
            next: 0,
            sent: BTreeMap::new(),
            cwnd: 10.0,
            // Without SACK, a start that overshoots is repaired one segment per round trip, for
            // minutes, whatever the link.
            ssthresh: if sack { f64::INFINITY } else { 60.0 },
            duplicates: 0,
            recovery: None,
            by_timeout: false,
            rack: Duration::ZERO,
            rtt: None,
            backoff: 0,
            timer: None,
            probe: None,
            probed: None,
            timeouts: 0,
            reductions: 0,
            again: 0,
        }
    }

    pub fn deadline(&self) -> Option<Duration> {
        [self.timer, self.probe].into_iter().flatten().min()
    }

    fn rto(&self) -> Duration {
        let (srtt, var) = self.rtt.unwrap_or((Duration::from_millis(200), RTO_MIN));
        (srtt + (var * 4).max(RTO_MIN)) * (1 << self.backoff.min(6))
    }

    fn flight(&self) -> f64 {
        let under_way = self.sent.values().filter(|sent| !sent.sacked && !sent.lost);
        under_way.count() as f64
    }

    /// Returns the segments to send now.
    pub fn send(&mut self, now: Duration) -> Vec<u64> {
        let mut out = Vec::new();
        let mut room = (self.cwnd - self.flight()).max(0.0) as usize;
        let lost = self.sent.iter().filter(|(_, sent)| sent.lost);
        let lost: Vec<u64> = lost.map(|(number, _)| *number).take(room).collect();
        for number in lost {
            self.transmit(now, number, &mut out);
            room -= 1;
        }
        // Limited transmit (RFC 3042).
        let limited = if self.recovery.is_none() {
            self.duplicates.min(2) as usize
        } else {
            0
        };
        let limited = if self.sack { 0 } else { limited };
        for _ in
            0..(room + limited).min(RECEIVE_WINDOW.saturating_sub((self.next - self.una) as usize))
        {
            self.transmit(now, self.next, &mut out);
            self.next += 1;
        }
        if !out.is_empty() {
            self.arm(now);
        }
        out
    }

    fn transmit(&mut self, now: Duration, number: u64, out: &mut Vec<u64>) {
        let again = self.sent.contains_key(&number);
        self.again += u64::from(again);
        let sent = Sent {
            at: now,
            again,
            sacked: false,
            lost: false,
        };
        self.sent.insert(number, sent);
        out.push(number);
    }

    fn arm(&mut self, now: Duration) {
        let outstanding = !self.sent.is_empty();
        self.timer = outstanding.then(|| now + self.rto());
        let may_probe =
            self.sack && outstanding && self.recovery.is_none() && self.probed.is_none();
        let after = self
            .rtt
            .map(|(srtt, _)| srtt * 2 + Duration::from_millis(8));
        self.probe = after.filter(|_| may_probe).map(|after| now + after);
    }

    pub fn hear(&mut self, now: Duration, ack: &Ack) -> Vec<u64> {
        if ack.next < self.una || ack.next > self.next {
            return self.send(now);
        }
        let acked = ack.next - self.una;
        self.take(now, ack);
        if acked > 0 {
            self.on_progress(ack, acked);
        } else {
            let reported = !self.sack || ack.sack.iter().any(|(begin, _)| *begin >= self.una);
            self.duplicates += u32::from(reported && !self.sent.is_empty());
        }
        if self.sack {
            self.find_lost();
        } else {
            self.count_duplicates(acked);
        }
        let out = self.send(now);
        if acked > 0 && out.is_empty() {
            self.arm(now);
        }
        out
    }

    /// Handles the data that this acknowledgement reports.
    fn take(&mut self, now: Duration, ack: &Ack) {
        let mut sample = None;
        while let Some(entry) = self.sent.first_entry()
            && *entry.key() < ack.next
        {
            let sent = entry.remove();
            if !sent.sacked {
                self.rack = self
                    .rack
                    .max(if sent.again { Duration::ZERO } else { sent.at });
                sample = (!sent.again).then_some(now - sent.at);
            }
        }
        let ranges = ack.sack.iter().filter(|_| self.sack);
        for &(begin, end) in ranges.filter(|(begin, end)| begin < end) {
            for sent in self.sent.range_mut(begin..end).map(|(_, sent)| sent) {
                // If it came sooner after the retransmission than a round trip, it belongs to the
                // first transmission.
                let early = self
                    .rtt
                    .is_some_and(|(srtt, _)| sent.again && now < sent.at + srtt / 2);
                if !sent.sacked && !early {
                    self.rack = self.rack.max(sent.at);
                }
                (sent.sacked, sent.lost) = (true, false);
            }
        }
        if let Some(sample) = sample {
            let (srtt, var) = self.rtt.unwrap_or((sample, sample / 2));
            let off = srtt.abs_diff(sample);
            self.rtt = Some(((srtt * 7 + sample) / 8, (var * 3 + off) / 4));
        }
    }

    fn on_progress(&mut self, ack: &Ack, acked: u64) {
        self.una = ack.next;
        self.duplicates = 0;
        self.backoff = 0;
        if let Some((_, again)) = self.probed.filter(|(point, _)| ack.next >= *point) {
            self.probed = None;
            // The probe alone made progress (RFC 8985 §7.4).
            if again && self.recovery.is_none() {
                self.reduce();
                self.cwnd = self.ssthresh;
            }
        }
        match self.recovery {
            Some(point) if self.una >= point => {
                if !self.by_timeout {
                    self.cwnd = self.ssthresh;
                }
                (self.recovery, self.by_timeout) = (None, false);
            }
            Some(_) if !self.by_timeout => {
                if !self.sack {
                    // Partial acknowledgement: the next segment is lost too (RFC 6582 §3.2).
                    if let Some(sent) = self.sent.get_mut(&self.una) {
                        sent.lost = true;
                    }
                    self.cwnd = (self.cwnd - acked as f64 + 1.0).max(1.0);
                }
            }
            _ => self.grow(acked as f64),
        }
    }

    fn grow(&mut self, acked: f64) {
        // Only a window that is used grows (RFC 7661).
        if self.flight() + acked + 1.0 < self.cwnd / 2.0 {
            return;
        }
        let slow = acked.min((self.ssthresh - self.cwnd).max(0.0));
        self.cwnd += slow;
        self.cwnd += (acked - slow) / self.cwnd;
    }

    fn reduce(&mut self) {
        self.ssthresh = (self.cwnd / 2.0).max(2.0);
        self.reductions += 1;
    }

    fn find_lost(&mut self) {
        let reordering = self.rtt.map_or(Duration::ZERO, |(srtt, _)| srtt / 4);
        let sacked = self.sent.values().rev().filter(|sent| sent.sacked).count();
        let mut above = sacked;
        for sent in self.sent.values_mut() {
            if sent.sacked {
                above -= 1;
            } else if !sent.lost {
                let by_count = above >= 3 && !sent.again;
                sent.lost = by_count || (sent.at + reordering < self.rack);
            }
        }
        if self.sent.values().any(|sent| sent.lost) && self.recovery.is_none() {
            self.reduce();
            self.cwnd = self.ssthresh;
            self.recovery = Some(self.next);
            self.probe = None;
        }
    }

    fn count_duplicates(&mut self, acked: u64) {
        if acked > 0 {
            return;
        }
        if self.recovery.is_some() {
            self.cwnd += if self.by_timeout { 0.0 } else { 1.0 };
        } else if self.duplicates == 3 {
            self.reduce();
            self.cwnd = self.ssthresh + 3.0;
            self.recovery = Some(self.next);
            if let Some(sent) = self.sent.get_mut(&self.una) {
                sent.lost = true;
            }
            // It is sent whatever the window is.
            self.cwnd = self.cwnd.max(self.flight() + 1.0);
        }
    }

    pub fn on_time(&mut self, now: Duration) -> Vec<u64> {
        if self.probe.is_some_and(|at| at <= now) {
            self.probe = None;
            let mut out = Vec::new();
            let fresh = self.next;
            if ((self.next - self.una) as usize) < RECEIVE_WINDOW {
                self.transmit(now, self.next, &mut out);
                self.next += 1;
            } else if let Some(last) = self.next.checked_sub(1) {
                self.transmit(now, last, &mut out);
            }
            self.probed = Some((self.next, self.next == fresh));
            self.timer = Some(now + self.rto());
            return out;
        }
        if self.timer.is_none_or(|at| at > now) {
            return Vec::new();
        }
        self.timeouts += 1;
        if !self.by_timeout {
            self.reduce();
        }
        self.backoff += 1;
        self.cwnd = 1.0;
        self.duplicates = 0;
        self.probed = None;
        for sent in self.sent.values_mut() {
            sent.lost = !sent.sacked;
        }
        (self.recovery, self.by_timeout) = (Some(self.next), true);
        self.timer = None;
        self.send(now)
    }
}

/// In segments. Linux's default (6 MB at most) is never reached here.
const RECEIVE_WINDOW: usize = 2000;

/// Acknowledges every second segment, and at once an out-of-order one.
#[derive(Debug, Default)]
pub struct Receiver {
    pub next: u64,
    beyond: BTreeSet<u64>,
    /// Last segments that came out of order.
    recent: Vec<u64>,
    waiting: Option<Duration>,
    pub twice: u64,
}

impl Receiver {
    pub fn deadline(&self) -> Option<Duration> {
        self.waiting
    }

    pub fn on_time(&mut self, now: Duration) -> Option<Ack> {
        self.waiting.take_if(|at| *at <= now)?;
        Some(self.ack(None))
    }

    pub fn take(&mut self, now: Duration, number: u64) -> Option<Ack> {
        if number < self.next || self.beyond.contains(&number) {
            self.twice += 1;
            return Some(self.ack(Some(number)));
        }
        if number > self.next {
            self.beyond.insert(number);
            self.recent.retain(|before| *before != number);
            self.recent.insert(0, number);
            self.recent.truncate(64);
            self.waiting = None;
            return Some(self.ack(None));
        }
        let filled = !self.beyond.is_empty();
        self.next += 1;
        while self.beyond.remove(&self.next) {
            self.next += 1;
        }
        if filled || self.waiting.take().is_some() {
            return Some(self.ack(None));
        }
        self.waiting = Some(now + DELAYED);
        None
    }

    /// Returns an acknowledgement; `twice`: the duplicate segment (RFC 2883).
    fn ack(&mut self, twice: Option<u64>) -> Ack {
        let mut sack: Vec<_> = twice
            .map(|number| (number, number + 1))
            .into_iter()
            .collect();
        self.recent.retain(|number| self.beyond.contains(number));
        for &number in &self.recent {
            let (mut begin, mut end) = (number, number + 1);
            while begin > 0 && self.beyond.contains(&(begin - 1)) {
                begin -= 1;
            }
            while self.beyond.contains(&end) {
                end += 1;
            }
            if sack.len() < 3 && !sack.contains(&(begin, end)) {
                sack.push((begin, end));
            }
        }
        Ack {
            next: self.next,
            sack,
        }
    }
}
