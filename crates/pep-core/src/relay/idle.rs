//! Idle detection of flows.

use std::time::Duration;

/// Result of an [`IdleClock`] timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdleEvent {
    /// Bytes have moved; no action is needed.
    Active,
    /// No byte has moved for a while: memory can be freed.
    Quiet,
    /// No byte has moved for the idle timeout: the flow is over.
    Expired,
}

/// Measures how long a flow has been idle, without reading the clock for each byte.
///
/// Activity only sets a flag, which the timer checks. Idle times are therefore up to one
/// [`QUIET`](Self::QUIET) longer than configured.
#[derive(Debug, Clone)]
pub struct IdleClock {
    limit: Option<Duration>,
    active: bool,
    quiet: bool,
}

impl IdleClock {
    /// Idle time after which a flow's memory is freed: long for a conversation, short against the
    /// hours of an idle session.
    pub const QUIET: Duration = Duration::from_secs(1);

    /// Returns the clock of a flow that has just started. `limit` is the idle timeout.
    pub fn new(limit: Option<Duration>) -> Self {
        Self {
            limit,
            active: true,
            quiet: false,
        }
    }

    /// Records that a byte moved. Returns whether to set the timer again, to [`QUIET`](Self::QUIET)
    /// from now, because it was set for the idle timeout.
    pub fn on_activity(&mut self) -> bool {
        self.active = true;
        std::mem::take(&mut self.quiet)
    }

    /// Handles the timer. Returns the result, and the time until it has to fire again; `None` for
    /// not before the next activity.
    pub fn handle_timeout(&mut self) -> (IdleEvent, Option<Duration>) {
        if std::mem::take(&mut self.active) {
            return (IdleEvent::Active, Some(Self::QUIET));
        }
        if std::mem::replace(&mut self.quiet, true) {
            return (IdleEvent::Expired, None);
        }
        (
            IdleEvent::Quiet,
            self.limit.map(|limit| limit.saturating_sub(Self::QUIET)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn quiet_then_expired() {
        let mut clock = IdleClock::new(Some(LIMIT));
        assert_eq!(
            clock.handle_timeout(),
            (IdleEvent::Active, Some(IdleClock::QUIET))
        );
        let rest = LIMIT - IdleClock::QUIET;
        assert_eq!(clock.handle_timeout(), (IdleEvent::Quiet, Some(rest)));
        assert_eq!(clock.handle_timeout(), (IdleEvent::Expired, None));
    }

    #[test]
    fn activity_restarts_the_timer() {
        let mut clock = IdleClock::new(Some(LIMIT));
        clock.handle_timeout();
        assert!(!clock.on_activity(), "the timer is due soon anyway");
        assert_eq!(clock.handle_timeout().0, IdleEvent::Active);
        assert_eq!(clock.handle_timeout().0, IdleEvent::Quiet);
        assert!(clock.on_activity(), "the timer is far away");
        assert_eq!(clock.handle_timeout().0, IdleEvent::Active);
        assert_eq!(clock.handle_timeout().0, IdleEvent::Quiet);
    }

    #[test]
    fn without_a_limit_only_quiet() {
        let mut clock = IdleClock::new(None);
        clock.handle_timeout();
        assert_eq!(clock.handle_timeout(), (IdleEvent::Quiet, None));
    }
}
