//! Idle detection of flows.

use std::time::Duration;

use super::Keepalives;

/// Result of an [`IdleClock`] timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdleEvent {
    /// Bytes have moved; no action is needed.
    Active,
    /// No byte has moved for a while: memory can be freed.
    Quiet,
    /// No byte has moved since: time to look for [keepalives](Keepalives).
    Look,
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
    /// Interval between looks for keepalives; `None` without looks.
    look: Option<Duration>,
    /// Time for which the flow has been idle when the timer fires; zero before it is quiet.
    idle: Duration,
}

impl IdleClock {
    /// Idle time after which a flow's memory is freed: long for a conversation, short against the
    /// hours of an idle session.
    pub const QUIET: Duration = Duration::from_secs(1);

    /// Returns the clock of a flow that has just started. `limit` is the idle timeout; `looks` is
    /// true if the flow passes keepalives on.
    pub fn new(limit: Option<Duration>, looks: bool) -> Self {
        Self {
            limit,
            active: true,
            look: looks.then_some(Keepalives::LOOKS.0),
            idle: Duration::ZERO,
        }
    }

    /// Records that a byte moved. Returns whether to set the timer again, to [`QUIET`](Self::QUIET)
    /// from now, because it was set for a later time.
    pub fn on_activity(&mut self) -> bool {
        self.active = true;
        !std::mem::take(&mut self.idle).is_zero()
    }

    /// Handles the timer. Returns the result, and the time until it has to fire again; `None` for
    /// not before the next activity.
    pub fn handle_timeout(&mut self) -> (IdleEvent, Option<Duration>) {
        if std::mem::take(&mut self.active) {
            self.look = self.look.map(|_| Keepalives::LOOKS.0);
            return (IdleEvent::Active, Some(Self::QUIET));
        }
        let is_first = self.idle.is_zero();
        if is_first {
            self.idle = Self::QUIET;
        } else if self.limit.is_some_and(|limit| self.idle >= limit) {
            return (IdleEvent::Expired, None);
        }
        let left = self.limit.map(|limit| limit.saturating_sub(self.idle));
        let next = self.look.into_iter().chain(left).min();
        self.idle += next.unwrap_or_default();
        let event = if is_first {
            IdleEvent::Quiet
        } else {
            IdleEvent::Look
        };
        (event, next)
    }

    /// Sets the interval between looks by the keepalives that the last one found: soon after
    /// several, ever more rarely without any. Takes effect after the next look.
    pub fn on_looked(&mut self, keepalives: u32) {
        let (shortest, longest) = Keepalives::LOOKS;
        self.look = self.look.map(|look| match keepalives {
            0 => (2 * look).min(longest),
            many => (look / many).max(shortest),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn quiet_then_expired() {
        let mut clock = IdleClock::new(Some(LIMIT), false);
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
        let mut clock = IdleClock::new(Some(LIMIT), false);
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
        let mut clock = IdleClock::new(None, false);
        clock.handle_timeout();
        assert_eq!(clock.handle_timeout(), (IdleEvent::Quiet, None));
    }

    #[test]
    fn looks_for_keepalives_become_rare_unless_some_come() {
        let seconds = |event, seconds| (event, Some(Duration::from_secs(seconds)));
        let mut clock = IdleClock::new(Some(LIMIT), true);
        clock.handle_timeout();
        assert_eq!(clock.handle_timeout(), seconds(IdleEvent::Quiet, 1));
        for next in [1, 2, 4] {
            assert_eq!(clock.handle_timeout(), seconds(IdleEvent::Look, next));
            clock.on_looked(0);
        }
        clock.on_looked(1);
        assert_eq!(clock.handle_timeout(), seconds(IdleEvent::Look, 8));
        clock.on_looked(4);
        for _ in 0..20 {
            assert_eq!(clock.handle_timeout(), seconds(IdleEvent::Look, 2));
        }
        // 57 of 60 s.
        assert_eq!(clock.handle_timeout(), seconds(IdleEvent::Look, 2));
        assert_eq!(clock.handle_timeout(), seconds(IdleEvent::Look, 1));
        assert_eq!(clock.handle_timeout(), (IdleEvent::Expired, None));
        assert!(clock.on_activity());
        assert_eq!(clock.handle_timeout(), seconds(IdleEvent::Active, 1));
        assert_eq!(clock.handle_timeout(), seconds(IdleEvent::Quiet, 1));
    }
}
