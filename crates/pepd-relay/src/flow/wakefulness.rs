//! Whether a flow waits awake.
//!
//! To put a processor to sleep and wake it for the next packet takes some 50 us, in a virtual machine
//! more: as long as a whole round trip on a LAN. A flow whose ends answer each other that fast asks
//! its legs for a while before it sleeps. Bulk transfers do not: they would pay for it with every
//! chunk, and gain nothing that their buffers do not give them.

use std::time::Duration;

/// What a turn of a conversation moves at most; more is bulk.
const MESSAGE_MAX: u64 = 4096;

/// Decides how a flow waits, by how its last waits went.
#[derive(Debug)]
pub(super) struct Wakefulness {
    limit: Duration,
    /// The last wait was short.
    brisk: bool,
    /// Received since the last wait.
    received: u64,
}

impl Wakefulness {
    /// Of a flow that has never waited, which may stay awake for up to `limit` at a time.
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            limit,
            brisk: false,
            received: 0,
        }
    }

    /// How long a wait may be spent awake.
    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    /// The server is so near that its first answer may be expected soon.
    pub(super) fn on_near(&mut self) {
        self.brisk = true;
    }

    /// Bytes have come.
    pub(super) fn on_received(&mut self, count: u64) {
        self.received += count;
    }

    /// Whether the wait that begins now begins awake.
    pub(super) fn stays_awake(&self) -> bool {
        self.brisk && (1..=MESSAGE_MAX).contains(&self.received) && !self.limit.is_zero()
    }

    /// A wait is over. One of twice the limit would have been within it but for the sleep.
    pub(super) fn on_waited(&mut self, time: Duration) {
        self.brisk = time < 2 * self.limit;
        self.received = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(50);

    fn after(waited: Duration, received: u64) -> bool {
        let mut wakefulness = Wakefulness::new(LIMIT);
        wakefulness.on_waited(waited);
        wakefulness.on_received(received);
        wakefulness.stays_awake()
    }

    #[test]
    fn only_brisk_conversations_wait_awake() {
        assert!(after(LIMIT, 1));
        assert!(!after(2 * LIMIT, 1), "the last answer took long");
        assert!(!after(LIMIT, 0), "nothing has come since the last wait");
        assert!(!after(LIMIT, MESSAGE_MAX + 1), "bulk");
    }

    #[test]
    fn the_first_wait_is_awake_if_the_server_is_near() {
        let mut wakefulness = Wakefulness::new(LIMIT);
        wakefulness.on_received(1);
        assert!(!wakefulness.stays_awake());
        wakefulness.on_near();
        assert!(wakefulness.stays_awake());
    }

    #[test]
    fn a_limit_of_zero_never_waits_awake() {
        let mut wakefulness = Wakefulness::new(Duration::ZERO);
        wakefulness.on_near();
        wakefulness.on_received(1);
        assert!(!wakefulness.stays_awake());
    }
}
