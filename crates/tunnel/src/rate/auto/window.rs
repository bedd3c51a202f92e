//! Congestion window like that of a competing TCP (CUBIC, RFC 9438), for a fair share against it.

/// The multiplicative decrease (RFC 9438 §4.6).
const BETA: f64 = 0.7;
/// Scaling constant (RFC 9438 §5).
const C: f64 = 0.4;
/// Growth per round trip in Reno's region (RFC 9438 §4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// Window in packets, as in CUBIC; grows with time, and shrinks only with congestion.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) packets: f64,
    most: f64,
    /// Time in seconds from the decrease until `most` is reached again (RFC 9438 §4.2).
    k: f64,
    /// Window of Reno.
    reno: f64,
    /// Start of growth: a round trip after a decrease, as TCP recovers first.
    epoch: f64,
    last: f64,
    /// Send time before which losses are already covered by a decrease.
    answered: f64,
}

impl Window {
    pub(super) fn new(now: f64, packets: f64) -> Self {
        let packets = packets.max(2.0);
        Self {
            packets,
            most: packets,
            k: 0.0,
            reno: packets,
            epoch: now,
            last: now,
            answered: now,
        }
    }

    /// Grows with time; `rtt` includes queueing, `minimum` does not.
    pub(super) fn grow(&mut self, now: f64, rtt: f64, minimum: f64) {
        let rounds = ((now - self.last.max(self.epoch)) / rtt).clamp(0.0, 1.0);
        self.last = now;
        if now <= self.epoch {
            return;
        }
        self.reno += ALPHA * rounds;
        let t = now - self.epoch + minimum;
        let target = C * (t - self.k).powi(3) + self.most;
        // Growth of 50 % per round trip at most (RFC 9438 §4.4).
        let target = target.clamp(self.packets, 1.5 * self.packets);
        self.packets += (target - self.packets) * rounds;
        self.packets = self.packets.max(self.reno);
    }

    /// Continues after a time without use.
    pub(super) fn resume(&mut self, now: f64) {
        self.epoch += (now - self.last).max(0.0);
        (self.last, self.answered) = (now, now);
    }

    /// Handles congestion: a packet sent at `sent_at` met a full queue; `rtt` includes queueing.
    pub(super) fn congestion(&mut self, now: f64, sent_at: f64, rtt: f64) -> bool {
        if sent_at <= self.answered {
            return false;
        }
        // Fast convergence (RFC 9438 §4.7): a shrinking flow releases a little more.
        let shrinking = self.packets < self.most;
        self.most = self.packets * if shrinking { (1.0 + BETA) / 2.0 } else { 1.0 };
        self.packets = (self.packets * BETA).max(2.0);
        self.reno = self.packets;
        self.k = ((self.most - self.packets).max(0.0) / C).cbrt();
        (self.epoch, self.last, self.answered) = (now + rtt, now, now);
        true
    }
}
