//! Pacing: the time at which the next packet may leave.

#[cfg(test)]
mod tests;

use std::time::Duration;

use super::time_of;

/// Range of the time that a late wake-up may catch up, for short and long round trips. A busy host
/// wakes pepd some milliseconds late: one time slice of another program is 4 ms. Packets sent to
/// catch up then stand in the link's queue, as pepd sends at the link's rate. There they keep the
/// link busy during the next late wake-up, but delay urgent data.
const LATE_MIN: Duration = Duration::from_millis(1);
const LATE_MAX: Duration = Duration::from_millis(5);
/// Catch-up time as a part of a round trip: little compared to any suitable queue.
const LATE_PART: u32 = 128;

/// Time of a batch. Each costs one wake-up of the sender, and its packets stand in the link's queue
/// together.
const TIME: Duration = Duration::from_millis(1);
/// Packets that make a batch in a longer time: queues hold five or more.
const FEW: u32 = 4;
/// Part of a round trip that such a batch may take, and its maximum time. While nothing is lost,
/// batches of any number of packets may take it. Both are less than the longest wait for packets
/// of the peer ([`Session::may_wait`](crate::session::Session::may_wait)), so that each batch is an
/// occasion to receive.
const LONG_PART: u32 = 20;
const LONG_MAX: Duration = Duration::from_millis(16);
/// Time without loss after which batches become long, at first and at most. Each time that loss
/// follows, it becomes longer by this factor.
const CALM_FIRST: Duration = Duration::from_secs(1);
const CALM_MAX: Duration = Duration::from_secs(600);
const CALM_FACTOR: u32 = 4;

/// Record of losses: whether the link's queue seems to hold long batches.
#[derive(Clone, Copy, Debug)]
pub struct Calm {
    since: Duration,
    needed: Duration,
}

impl Calm {
    /// Creates a record without losses that begins at `now`.
    pub fn new(now: Duration) -> Self {
        Self {
            since: now,
            needed: CALM_FIRST,
        }
    }

    /// Records the loss of packets.
    pub fn on_loss(&mut self, now: Duration) {
        if self.is_calm(now) {
            self.needed = (self.needed * CALM_FACTOR).min(CALM_MAX);
        }
        self.since = now;
    }

    /// Returns true if nothing has been lost for long enough.
    pub fn is_calm(&self, now: Duration) -> bool {
        now >= self.since + self.needed
    }
}

/// Maximum batch of packets that leave together, in one system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Maximum number of packets.
    pub packets: u32,
    /// Maximum time of the batch at the rate.
    pub time: Duration,
    /// Maximum time of a batch of at most four packets. The longer of both times is the maximum
    /// wait of a single packet.
    pub time_of_few: Duration,
    /// Maximum time that a late caller may catch up.
    pub late: Duration,
}

impl Batch {
    /// Returns a suitable batch for a path with this round trip time, which loses nothing if it is
    /// `calm`.
    pub fn for_path(rtt: Duration, calm: bool) -> Self {
        let long = (rtt / LONG_PART).min(LONG_MAX);
        Self {
            time: if calm { TIME.max(long) } else { TIME },
            time_of_few: long,
            late: (rtt / LATE_PART).clamp(LATE_MIN, LATE_MAX),
            ..Self::default()
        }
    }
}

impl Batch {
    /// Returns the batch where some bytes may wait no longer than `most`. A short batch remains, at
    /// any `most`.
    #[must_use]
    pub fn within(self, most: Duration) -> Self {
        Self {
            time: self.time.min(most.max(TIME)),
            time_of_few: self.time_of_few.min(most),
            ..self
        }
    }
}

impl Default for Batch {
    /// The batch for a short round trip. Above 3 Gbit/s, a millisecond would exceed a CPU's cache.
    fn default() -> Self {
        Self {
            packets: 256,
            time: TIME,
            time_of_few: Duration::ZERO,
            late: LATE_MIN,
        }
    }
}

/// Pacer: spaces packets evenly at a rate, alone or in small batches.
///
/// Over any span, no more leaves than the rate allows plus a batch and the catch-up time. No less
/// leaves as long as the caller asks no later than the catch-up time after the
/// [deadline](Self::deadline).
///
/// ```text
///   next: when the packet after the last one is due
///   closed --(now >= next + hold)--> open --(a packet is sent, now < next)--> closed
///   hold = min(time, (packets - 1) x a packet's time), or if longer the same for few packets
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Pacer {
    rate: u64,
    batch: Batch,
    next: Duration,
    open: bool,
    /// Largest recent packet, with slow decay; determines the time of a batch.
    bytes_max: u64,
    /// Time to wait for a batch.
    hold: Duration,
}

impl Pacer {
    /// Creates a pacer for a rate in bits per second, whose first packet may leave at once.
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

    /// Returns the rate in bits per second.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// Sets the rate in bits per second. The remaining wait is scaled with it.
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

    /// Sets the size of batches. The time at which the next batch leaves does not change; one that
    /// is leaving grows or shrinks at once. So the link's queue drains what longer batches have put
    /// into it once they are shorter, and the link never pauses.
    pub fn set_batch(&mut self, batch: Batch) {
        if batch != self.batch {
            let leaves = self.next.saturating_add(self.hold);
            self.batch = batch;
            self.hold = self.hold();
            self.next = leaves.saturating_sub(self.hold);
        }
    }

    /// Returns when a packet that waits for no batch may leave.
    pub fn next(&self) -> Duration {
        self.next
    }

    /// Returns when to ask next.
    pub fn deadline(&self) -> Duration {
        if self.open {
            self.next
        } else {
            self.next.saturating_add(self.hold)
        }
    }

    /// Returns true if a packet may leave now.
    pub fn may_send(&mut self, now: Duration) -> bool {
        self.open |= now >= self.deadline();
        self.open && now >= self.next
    }

    /// Records that a packet of this many bytes on the link is sent, all overhead included. May be
    /// called without asking: urgent packets go at once, and the others wait for it.
    pub fn on_sent(&mut self, now: Duration, bytes: u64) {
        self.on_sent_ahead(now, bytes, self.rate);
    }

    /// Records a packet that bypasses the order, at a rate of its own if that is higher. Otherwise
    /// such packets could use up a low rate, and nothing would ever raise it.
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
        let Batch {
            packets,
            time,
            time_of_few,
            ..
        } = self.batch;
        let hold = |packets: u32, time| {
            // No batch if one packet already takes longer.
            let more = packets.saturating_sub(1);
            let bytes = self.bytes_max.saturating_mul(more.into());
            let whole = time_of(self.bytes_max.max(1), self.rate);
            if whole > time {
                Duration::ZERO
            } else {
                time_of(bytes, self.rate).min(time)
            }
        };
        hold(packets, time).max(hold(packets.min(FEW), time_of_few))
    }
}
