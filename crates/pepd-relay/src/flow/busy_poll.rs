//! Busy polling of a flow's legs.
//!
//! Sleeping and waking a CPU for the next packet takes some 50 us, more in a virtual machine: as
//! long as a whole round trip on a LAN. A flow whose ends answer each other that fast polls its
//! legs for a while before it sleeps. Bulk transfers do not: they would pay for it with every chunk
//! and gain nothing beyond what their buffers give them.

use std::time::Duration;

/// Maximum bytes of one turn of a request-response exchange; more is bulk.
const MESSAGE_MAX: u64 = 4096;

/// Decides from the last waits whether the next one begins with busy polling.
#[derive(Debug)]
pub(super) struct BusyPoll {
    limit: Duration,
    /// True if the last wait was short.
    short_waits: bool,
    /// Bytes received since the last wait.
    received: u64,
}

impl BusyPoll {
    /// Creates the state of a flow that has never waited. `limit` bounds each busy poll.
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            limit,
            short_waits: false,
            received: 0,
        }
    }

    /// Returns the maximum busy polling time of one wait.
    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    /// Notes that the server is near: its first answer is expected soon.
    pub(super) fn on_near(&mut self) {
        self.short_waits = true;
    }

    /// Notes received bytes.
    pub(super) fn on_received(&mut self, count: u64) {
        self.received += count;
    }

    /// Returns whether the wait that begins now starts with busy polling.
    pub(super) fn stays_awake(&self) -> bool {
        self.short_waits && (1..=MESSAGE_MAX).contains(&self.received) && !self.limit.is_zero()
    }

    /// Notes the end of a wait. Without the sleep, a wait of up to twice the limit would have ended
    /// within the limit.
    pub(super) fn on_waited(&mut self, time: Duration) {
        self.short_waits = time < 2 * self.limit;
        self.received = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(50);

    fn after(waited: Duration, received: u64) -> bool {
        let mut busy_poll = BusyPoll::new(LIMIT);
        busy_poll.on_waited(waited);
        busy_poll.on_received(received);
        busy_poll.stays_awake()
    }

    #[test]
    fn only_brisk_conversations_wait_awake() {
        assert!(after(LIMIT, 1));
        assert!(!after(2 * LIMIT, 1), "last answer slow");
        assert!(!after(LIMIT, 0), "no bytes since the last wait");
        assert!(!after(LIMIT, MESSAGE_MAX + 1), "bulk");
    }

    #[test]
    fn the_first_wait_is_awake_if_the_server_is_near() {
        let mut busy_poll = BusyPoll::new(LIMIT);
        busy_poll.on_received(1);
        assert!(!busy_poll.stays_awake());
        busy_poll.on_near();
        assert!(busy_poll.stays_awake());
    }

    #[test]
    fn a_limit_of_zero_never_waits_awake() {
        let mut busy_poll = BusyPoll::new(Duration::ZERO);
        busy_poll.on_near();
        busy_poll.on_received(1);
        assert!(!busy_poll.stays_awake());
    }
}
