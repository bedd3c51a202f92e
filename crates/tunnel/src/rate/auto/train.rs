//! Packet train at the beginning: the spread of its arrivals gives the first rate.

use crate::path::PathSample;

/// Packets of the train.
pub(super) const PACKETS: u64 = 16;
/// Packets of the train on possibly very slow links, where each takes seconds: the minimum for a
/// reading.
pub(super) const PACKETS_SLOW: u64 = 6;
/// Maximum seconds between two packets of one train.
const TOGETHER: f64 = 0.005;

/// Reader of the train's spread: the first packets that left together, after initial sparse ones.
#[derive(Clone, Debug)]
pub(super) struct Train {
    packets: u64,
    /// Packets sent before the train.
    before: u64,
    sent: u64,
    last: f64,
    first: Option<Point>,
    indicated: f64,
}

#[derive(Clone, Copy, Debug)]
struct Point {
    packets: u64,
    bytes: u64,
    at: u64,
}

impl Train {
    /// Creates a train of this many packets that is about to leave.
    pub(super) fn of_packets(packets: u64) -> Self {
        Self {
            packets,
            before: 0,
            sent: 0,
            last: 0.0,
            first: None,
            indicated: 0.0,
        }
    }

    /// Creates an empty train: the rate is known already.
    pub(super) fn none() -> Self {
        Self::of_packets(0)
    }

    /// Returns the highest rate read so far in bits per second; 0 if none.
    pub(super) fn indicated(&self) -> f64 {
        self.indicated
    }

    /// Returns true if the next packet belongs to the train.
    pub(super) fn is_leaving(&self) -> bool {
        self.sent < self.packets
    }

    /// Returns the last packet number of the train.
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

    /// Returns the rate in bits per second between two samples of the train, if there are two. A
    /// sample after the train underestimates the rate, as its packets leave later. It counts where
    /// reports are too rare for two samples within the train.
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
            self.indicated = self.indicated.max(rate);
            rate
        })
    }
}
