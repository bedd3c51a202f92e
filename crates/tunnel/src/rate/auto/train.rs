//! The first packets, sent as fast as can be: how far apart they arrive says the first rate.

use crate::path::PathSample;

/// Packets of the train.
pub(super) const PACKETS: u64 = 16;
/// And where the link may be so slow that each takes seconds: the least that can be read.
pub(super) const PACKETS_SLOW: u64 = 6;
/// Seconds between two packets that are of one train.
const TOGETHER: f64 = 0.005;

/// Reads the spread of the train: the first packets that left together. Before, there was little
/// to send.
#[derive(Clone, Debug)]
pub(super) struct Train {
    packets: u64,
    /// Packets sent before it.
    before: u64,
    sent: u64,
    last: f64,
    first: Option<Point>,
    said: f64,
}

#[derive(Clone, Copy, Debug)]
struct Point {
    packets: u64,
    bytes: u64,
    at: u64,
}

impl Train {
    /// A train of so many packets that is about to leave.
    pub(super) fn of_packets(packets: u64) -> Self {
        Self {
            packets,
            before: 0,
            sent: 0,
            last: 0.0,
            first: None,
            said: 0.0,
        }
    }

    /// No train: the rate is known already.
    pub(super) fn none() -> Self {
        Self::of_packets(0)
    }

    /// The most that it has said, in bits a second; 0 if it has said nothing.
    pub(super) fn said(&self) -> f64 {
        self.said
    }

    /// Whether the next packet belongs to it.
    pub(super) fn is_leaving(&self) -> bool {
        self.sent < self.packets
    }

    /// After which number packets are not of it.
    pub(super) fn end(&self) -> u64 {
        self.before + self.sent
    }

    pub(super) fn on_sent(&mut self, now: f64) {
        if !self.is_leaving() {
            return;
        }
        if now - self.last > TOGETHER {
            (self.before, self.sent, self.first) = (self.end(), 0, None);
        }
        self.sent += 1;
        self.last = now;
    }

    /// Bits a second between two samples of the train, if there are two. What follows the train leaves later than it might, so a sample behind
    /// it says less than the link carries; it counts where reports are too rare for two within.
    pub(super) fn note(&mut self, sample: &PathSample, overhead: u64) -> Option<f64> {
        let within = sample.sent_packets <= self.end();
        let follows = self.first.is_some() && sample.sent_packets <= self.end() + self.packets;
        if sample.sent_packets <= self.before || !(within || follows) {
            return None;
        }
        let point = Point {
            packets: sample.packets,
            bytes: sample
                .bytes
                .saturating_add(sample.packets.saturating_mul(overhead)),
            at: sample.received_us,
        };
        let first = *self.first.get_or_insert(point);
        let time = point.at.checked_sub(first.at).filter(|us| *us > 0)?;
        let enough = point.packets >= first.packets.saturating_add(4);
        let rate = point.bytes.saturating_sub(first.bytes) as f64 * 8e6 / time as f64;
        enough.then(|| {
            self.said = self.said.max(rate);
            rate
        })
    }
}
