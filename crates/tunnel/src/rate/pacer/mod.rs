//! When the next packet may leave.

#[cfg(test)]
mod tests;

use std::time::Duration;

use super::time_of;

/// What a late wake-up may catch up where the round trip is short, and where it is long. A machine that does something
/// else meanwhile wakes us some milliseconds late: one turn of another program is 4 ms. What is caught up stands in the link's
/// queue from then on, since we send as fast as it does; there it keeps the link busy when we are late again, and what
/// is urgent waiting.
const LATE_MIN: Duration = Duration::from_millis(1);
const LATE_MAX: Duration = Duration::from_millis(5);
/// The part of a round trip that it may be: little beside any queue that suits the path.
const LATE_PART: u32 = 128;

/// How many packets may leave together, so that one system call sends them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// At most so many packets.
    pub packets: u32,
    /// At most what the rate allows in that time: a packet that is alone waits so long at most.
    pub time: Duration,
    /// Who asks later than it was told may catch up so much.
    pub late: Duration,
}

impl Batch {
    /// What suits a path with this round trip.
    pub fn for_round_trip(rtt: Duration) -> Self {
        Self {
            late: (rtt / LATE_PART).clamp(LATE_MIN, LATE_MAX),
            ..Self::default()
        }
    }
}

impl Default for Batch {
    /// What costs the link's queue no more than a millisecond: each time somebody is woken up who sends, and somebody else
    /// who receives. Above 3 Gbit/s that much would be more than a processor's cache has.
    fn default() -> Self {
        Self {
            packets: 256,
            time: Duration::from_millis(1),
            late: LATE_MIN,
        }
    }
}

/// Spaces packets evenly at a rate, alone or in small batches.
///
/// Over any span, no more leaves than the rate allows plus a batch and what may be caught up; and no less as
/// long as it is asked no later than that after its [deadline](Self::deadline).
///
/// ```text
///   next: when the packet after the last one is due
///   closed --(now >= next + hold)--> open --(a packet is sent, now < next)--> closed
///   hold = min(time, (packets - 1) x a packet's time)
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Pacer {
    rate: u64,
    batch: Batch,
    next: Duration,
    open: bool,
    /// Of the last packets, slowly forgotten: how long a batch takes depends on it.
    bytes_max: u64,
    /// How long a batch is waited for.
    hold: Duration,
}

impl Pacer {
    /// A pacer at so many bits a second, whose first packet may leave at once.
    pub fn new(rate: u64, batch: Batch) -> Self {
        Self {
            rate: rate.max(1),
            batch,
            next: Duration::ZERO,
            open: true,
            bytes_max: 0,
            hold: Duration::ZERO,
        }
    }

    /// The rate in bits a second.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// From now on at so many bits a second. What is still to be waited shrinks or grows with it.
    pub fn set_rate(&mut self, now: Duration, rate: u64) {
        let rate = rate.max(1);
        if rate == self.rate {
            return;
        }
        if self.next > now {
            let wait = (self.next - now).as_secs_f64() * self.rate as f64 / rate as f64;
            let wait = Duration::try_from_secs_f64(wait).unwrap_or(Duration::MAX);
            self.next = now.saturating_add(wait);
        }
        self.rate = rate;
        self.hold = self.hold();
    }

    /// When to ask next.
    pub fn deadline(&self) -> Duration {
        if self.open {
            self.next
        } else {
            self.next.saturating_add(self.hold)
        }
    }

    /// Whether a packet may leave now.
    pub fn may_send(&mut self, now: Duration) -> bool {
        self.open |= now >= self.deadline();
        self.open && now >= self.next
    }

    /// A packet has left that takes so many bytes on the link, everything counted. May be called without
    /// asking: what is urgent goes at once, and the others wait for it.
    pub fn on_sent(&mut self, now: Duration, bytes: u64) {
        self.on_sent_ahead(now, bytes, self.rate);
    }

    /// The same of a packet that does not wait for its turn, and reckons with a rate of its own, if that is higher:
    /// else such packets might use up all of a low rate, and nothing else could ever raise it.
    pub fn on_sent_ahead(&mut self, now: Duration, bytes: u64, rate: u64) {
        let bytes_max = bytes.max(self.bytes_max - self.bytes_max / 64);
        if bytes_max != self.bytes_max {
            self.bytes_max = bytes_max;
            self.hold = self.hold();
        }
        let oldest = now.saturating_sub(self.batch.late + self.hold);
        let time = time_of(bytes, rate.max(self.rate));
        self.next = self.next.max(oldest).saturating_add(time);
        self.open = now >= self.next;
    }

    fn hold(&self) -> Duration {
        let packets = u64::from(self.batch.packets.saturating_sub(1));
        let bytes = self.bytes_max.saturating_mul(packets);
        let whole = time_of(self.bytes_max.max(1), self.rate);
        // Where one packet takes longer than a batch may, there is no batch.
        if whole > self.batch.time {
            return Duration::ZERO;
        }
        time_of(bytes, self.rate).min(self.batch.time)
    }
}
