//! Signals derived from samples: queueing delay, and rates at both ends.

use std::collections::VecDeque;

use crate::path::{Minimum, PathSample, QueueDelay, RTT_HALF};

/// Maximum number of samples kept; a span has about eight.
const SAMPLES_MAX: usize = 256;
/// Maximum share of packets that a link loses behind its bottleneck, and packets for the share to
/// count. More are lost at a queue too short to show as delay.
pub(super) const LOST_MAX: f64 = 0.3;
const LOST_PACKETS: u64 = 16;
/// Maximum difference of delay in seconds that counts as jitter, or a round trip if that is longer.
const JITTER_MAX: f64 = 0.05;
/// One sample, and the span that ends with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// Arrival time of the report, in seconds.
    pub(super) now: f64,
    /// Send time of its packet.
    pub(super) sent_at: f64,
    /// One-way delay above the minimum, in seconds.
    pub(super) queue: f64,
    /// Minimum of that over the span.
    pub(super) queue_min: f64,
    /// Bits per second through the bottleneck: arrived, and lost by the link behind it.
    pub(super) carried: f64,
    /// Bits per second sent, of the same packets.
    pub(super) sent: f64,
    /// Send time of the span's first packet.
    pub(super) span_from: f64,
    /// Minimum round trip time over the span, in seconds.
    pub(super) rtt: f64,
    /// Share of the span's packets that did not arrive; 0 if they are few.
    pub(super) lost: f64,
    /// True if the sender had nothing to send during the span.
    pub(super) app_limited: bool,
}

#[derive(Clone, Copy, Debug)]
struct Point {
    sent_at: f64,
    received: f64,
    /// Packets that have arrived, and their bits on the link, since the session began.
    arrived: (u64, f64),
    /// Bits that have arrived or were lost by the link.
    carried: f64,
    /// Packets sent.
    sent: u64,
    queue: f64,
    rtt: f64,
    app_limited: bool,
}

/// Converter of samples to readings.
#[derive(Clone, Debug)]
pub(super) struct Signal {
    overhead: f64,
    /// Bits of a packet on the link, smoothed.
    packet: f64,
    delay: QueueDelay,
    rtt: Minimum,
    rtt_last: f64,
    /// Mean difference of delay between samples, in seconds (RFC 3550 §6.4.1).
    jitter: f64,
    points: VecDeque<Point>,
    /// True if the last sample was left out, and was application-limited.
    limited: bool,
    /// Bits that the link lost behind the bottleneck.
    link_lost: f64,
    counted: (u64, u64),
}

impl Signal {
    pub(super) fn new(packet: u64, overhead: u64, rtt: f64) -> Self {
        Self {
            overhead: overhead as f64,
            packet: packet.max(1) as f64 * 8.0,
            delay: QueueDelay::new(),
            rtt: Minimum::new(),
            rtt_last: rtt,
            jitter: 0.0,
            points: VecDeque::new(),
            limited: false,
            link_lost: 0.0,
            counted: (0, 0),
        }
    }

    /// Returns the bits of a usual packet.
    pub(super) fn packet(&self) -> f64 {
        self.packet
    }

    /// Returns the recent minimum round trip time, in seconds.
    pub(super) fn rtt(&self) -> f64 {
        let minimum = self.rtt.get();
        if minimum.is_finite() {
            minimum.max(1e-4)
        } else {
            self.rtt_last.max(1e-4)
        }
    }

    /// Returns the last round trip time, queueing included.
    pub(super) fn rtt_last(&self) -> f64 {
        self.rtt_last.max(1e-4)
    }

    /// Discards the span but not the delays: the next samples do not continue the previous ones.
    pub(super) fn cut(&mut self) {
        self.points.clear();
    }

    /// Adds a sample. Returns a reading if the span is long enough: `span` seconds and four
    /// packets.
    pub(super) fn note(
        &mut self,
        sample: &PathSample,
        lost_by_link: u64,
        span: f64,
    ) -> Option<Reading> {
        let mut point = self.point(sample, lost_by_link);
        // The next span includes the time before a sample that is left out.
        point.app_limited |= std::mem::take(&mut self.limited);
        if self
            .points
            .back()
            .is_some_and(|last| point.received <= last.received)
        {
            self.limited = point.app_limited;
            return None;
        }
        self.points.push_back(point);
        let keeps = |second: &Point| point.received - second.received >= span;
        while self.points.len() > SAMPLES_MAX || self.points.get(1).is_some_and(keeps) {
            self.points.pop_front();
        }
        self.reading(sample.now.as_secs_f64(), span)
    }

    /// Returns the one-way delay of the last sample above the minimum.
    pub(super) fn queue(&self) -> f64 {
        self.points.back().map_or(0.0, |point| point.queue)
    }

    /// Returns the mean difference of delay between samples, in seconds.
    pub(super) fn jitter(&self) -> f64 {
        self.jitter
    }

    /// Returns the recent round trip time in seconds: queueing included, lateness of single reports
    /// not.
    pub(super) fn rtt_recent(&self) -> f64 {
        self.least(|point| point.rtt).min(self.rtt_last())
    }

    /// Returns the minimum over the span; infinity if it is empty.
    fn least(&self, value: impl Fn(&Point) -> f64) -> f64 {
        self.points.iter().map(value).fold(f64::INFINITY, f64::min)
    }

    fn point(&mut self, sample: &PathSample, lost_by_link: u64) -> Point {
        let (received, sent_at) = (
            sample.received_us as f64 / 1e6,
            sample.sent_at.as_secs_f64(),
        );
        let now = sample.now.as_secs_f64();
        let (packets, bytes) = (sample.packets, sample.bytes);
        let new = packets.saturating_sub(self.counted.0);
        if new > 0 {
            let mean = bytes.saturating_sub(self.counted.1) as f64 / new as f64 + self.overhead;
            self.packet += (mean * 8.0 - self.packet) * (new as f64 / 64.0).min(1.0);
            // Limits of an IP packet's size.
            self.packet = self.packet.clamp(8.0 * 28.0, 8.0 * 65_535.0);
            self.counted = (packets, bytes);
        }
        self.link_lost += lost_by_link as f64 * self.packet;
        self.rtt_last = sample.rtt.as_secs_f64();
        self.rtt.note(now, self.rtt_last, RTT_HALF);
        self.delay.note_rtt(now, self.rtt_last);
        let queue = self.delay.note(sent_at, received);
        if let Some(last) = self.points.back() {
            // A single stall must not hide queues for long.
            let most = self.rtt().max(JITTER_MAX);
            let difference = (queue - last.queue).abs().min(most);
            self.jitter += (difference - self.jitter) / 16.0;
        }
        let bits = (bytes as f64 + packets as f64 * self.overhead) * 8.0;
        Point {
            sent_at,
            received,
            arrived: (packets, bits),
            carried: bits + self.link_lost,
            sent: sample.sent_packets,
            queue,
            rtt: self.rtt_last(),
            app_limited: sample.app_limited,
        }
    }

    fn reading(&self, now: f64, span: f64) -> Option<Reading> {
        let (first, last) = (self.points.front()?, self.points.back()?);
        let (time, sent_time) = (last.received - first.received, last.sent_at - first.sent_at);
        let packets = last.sent.saturating_sub(first.sent);
        if time < span || packets < 4 || sent_time <= 0.0 {
            return None;
        }
        // The usual size is misleading after short packets of a silence.
        let arrived = last.arrived.0.saturating_sub(first.arrived.0);
        let packet = if arrived > 0 {
            (last.arrived.1 - first.arrived.1) / arrived as f64
        } else {
            self.packet
        };
        let sent = packets as f64 * packet / sent_time;
        // Carried cannot exceed sent, except for inaccuracy due to the order of numbers.
        let slots = packets as f64 * packet / time;
        let lost = if packets < LOST_PACKETS {
            0.0
        } else {
            (1.0 - arrived as f64 / packets as f64).max(0.0)
        };
        let carried = if lost > LOST_MAX {
            (last.arrived.1 - first.arrived.1) / time
        } else {
            (last.carried - first.carried) / time
        };
        Some(Reading {
            now,
            sent_at: last.sent_at,
            queue: last.queue,
            queue_min: self.least(|point| point.queue),
            rtt: self.least(|point| point.rtt),
            carried: carried.min(slots),
            lost,
            sent,
            span_from: first.sent_at,
            app_limited: self.points.iter().skip(1).any(|point| point.app_limited),
        })
    }
}
