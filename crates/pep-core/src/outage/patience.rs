//! Time for which a connection with bytes to send may stay silent.
//!
//! The kernel's TCP_USER_TIMEOUT has two meanings. While bytes are in flight it bounds the silence.
//! While the far end's window is closed it bounds that time, however often the far end answers
//! probes. That ends connections whose receiver pauses: a printer out of paper, a film on pause. So
//! while a window is closed, pepd extends the timeout with each answer, by more than its own looks
//! need, and measures the silence itself.

use std::time::Duration;

use super::revival::Vitals;

/// Timeout of one connection, to be updated regularly.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    limit: Duration,
    /// Time by which a predecessor had extended the limit of a pause that still lasts: the kernel
    /// counts from its beginning.
    before: Duration,
    /// First update at which the window was closed.
    closed: Option<Duration>,
    set: Duration,
}

impl Patience {
    /// Interval between two updates.
    pub const LOOK: Duration = Duration::from_secs(1);

    /// Time without an update after which the kernel ends a connection whose window is closed. An
    /// upgrade, a crash or a busy machine keeps pepd from looking for some seconds.
    pub const UNSEEN: Duration = Duration::from_secs(30);

    /// Returns the state of a connection whose timeout is to be `limit`. The kernel has it `set` to
    /// that, or to what a predecessor's last update returned.
    pub const fn new(limit: Duration, set: Duration) -> Self {
        Self {
            limit,
            before: set.saturating_sub(limit),
            closed: None,
            set,
        }
    }

    /// Returns the timeout to set now, if it has changed. `now` counts from a fixed arbitrary
    /// moment.
    pub fn care(&mut self, now: Duration, vitals: &Vitals) -> Option<Duration> {
        let timeout = if vitals.waits_for_window {
            let closed = *self.closed.get_or_insert(now);
            if vitals.silent > self.limit {
                // The kernel counts from the window's closing, so it ends the connection at once.
                self.limit
            } else {
                let heard = now.saturating_sub(vitals.silent);
                self.limit + self.before + heard.saturating_sub(closed) + Self::UNSEEN
            }
        } else {
            (self.closed, self.before) = (None, Duration::ZERO);
            self.limit
        };
        let is_other = timeout != self.set;
        self.set = timeout;
        is_other.then_some(timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(6);

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn vitals(silent: u64, waits_for_window: bool) -> Vitals {
        Vitals {
            silent: s(silent),
            waits_for_window,
            ..Vitals::default()
        }
    }

    #[test]
    fn a_closed_window_lasts_as_long_as_it_is_answered_for() {
        let mut patience = Patience::new(LIMIT, LIMIT);
        assert_eq!(patience.care(s(10), &vitals(0, false)), None);
        let closed = patience.care(s(20), &vitals(1, true));
        assert_eq!(closed, Some(LIMIT + Patience::UNSEEN));
        let answered = patience.care(s(23), &vitals(1, true));
        assert_eq!(answered, Some(LIMIT + s(2) + Patience::UNSEEN));
        // Silence extends nothing.
        assert_eq!(patience.care(s(25), &vitals(3, true)), None);
        let answered = patience.care(s(100), &vitals(0, true));
        assert_eq!(answered, Some(LIMIT + s(80) + Patience::UNSEEN));
    }

    #[test]
    fn a_closed_window_that_no_one_answers_for_ends_at_the_limit() {
        let mut patience = Patience::new(LIMIT, LIMIT);
        patience.care(s(20), &vitals(0, true));
        patience.care(s(100), &vitals(0, true));
        assert_eq!(patience.care(s(106), &vitals(6, true)), None);
        assert_eq!(patience.care(s(107), &vitals(7, true)), Some(LIMIT));
    }

    #[test]
    fn a_time_without_looks_ends_no_connection() {
        let mut patience = Patience::new(LIMIT, LIMIT);
        patience.care(s(20), &vitals(0, true));
        let set = patience.care(s(50), &vitals(0, true)).expect("answered");
        // A probe that the kernel sends just before the end is answered after it.
        let closed_for = s(50 - 20);
        assert!(set >= closed_for + Patience::UNSEEN);
        let mut next = Patience::new(LIMIT, set);
        let seen = next.care(s(1), &vitals(1, true));
        assert!(seen >= Some(set), "{seen:?}");
    }

    #[test]
    fn an_open_window_has_the_usual_limit_again() {
        let mut patience = Patience::new(LIMIT, LIMIT);
        patience.care(s(20), &vitals(0, true));
        assert!(patience.care(s(50), &vitals(0, true)).is_some());
        assert_eq!(patience.care(s(51), &vitals(0, false)), Some(LIMIT));
        assert_eq!(patience.care(s(52), &vitals(0, false)), None);
        // The next pause counts from its own start.
        assert_eq!(
            patience.care(s(60), &vitals(0, true)),
            Some(LIMIT + Patience::UNSEEN)
        );
    }

    #[test]
    fn a_pause_that_began_with_a_predecessor_goes_on() {
        let extended = LIMIT + s(10_000);
        let mut patience = Patience::new(LIMIT, extended);
        let seen = patience.care(s(1), &vitals(2, true));
        assert_eq!(seen, Some(extended + Patience::UNSEEN));
        let answered = patience.care(s(5), &vitals(0, true));
        assert_eq!(answered, Some(extended + s(4) + Patience::UNSEEN));
        assert_eq!(patience.care(s(6), &vitals(0, false)), Some(LIMIT));
        patience.care(s(7), &vitals(0, true));
        let answered = patience.care(s(9), &vitals(0, true));
        assert_eq!(answered, Some(LIMIT + s(2) + Patience::UNSEEN));
    }

    #[test]
    fn a_pause_that_ended_unseen_leaves_no_long_limit() {
        let mut patience = Patience::new(LIMIT, LIMIT + s(10_000));
        assert_eq!(patience.care(s(1), &vitals(0, false)), Some(LIMIT));
    }
}
