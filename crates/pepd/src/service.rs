//! Notifications to the service manager by sd_notify(3): systemd, with `Type=notify`.

use sd_notify::NotifyState::{self, ExtendTimeoutUsec, Ready, Status, Watchdog};

/// Microseconds by which each notification extends the manager's timeout, during start and end.
const PATIENCE: u32 = 30_000_000;

/// Last notified state.
#[derive(Debug, Default)]
pub struct Service {
    is_ready: bool,
    ends: bool,
}

impl Service {
    /// Notifies the service manager: alive (at intervals of about a second), carrying flows, or
    /// draining. The duration of a drain is up to the configuration, not the service manager.
    /// Without a service manager this does nothing.
    pub fn notify(&mut self, is_up: bool, ends: bool) {
        if let Err(err) = sd_notify::notify(&self.state(is_up, ends)) {
            tracing::debug!(error = %err, "cannot notify the service manager");
        }
    }

    fn state(&mut self, is_up: bool, ends: bool) -> Vec<NotifyState<'static>> {
        let mut state = vec![Watchdog];
        if is_up && !self.is_ready {
            self.is_ready = true;
            state.extend([Ready, Status("carries flows")]);
        }
        if ends && !self.ends {
            self.ends = true;
            state.push(Status("drains: new flows pass by"));
        }
        if ends || !self.is_ready {
            state.push(ExtendTimeoutUsec(PATIENCE));
        }
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notified(service: &mut Service, is_up: bool, ends: bool) -> String {
        let state = service.state(is_up, ends);
        let state: Vec<_> = state.iter().map(ToString::to_string).collect();
        state.join(" ")
    }

    #[test]
    fn changes_are_notified_once_and_waiting_repeatedly() {
        let mut service = Service::default();
        let waits = "WATCHDOG=1 EXTEND_TIMEOUT_USEC=30000000";
        assert_eq!(notified(&mut service, false, false), waits);
        assert_eq!(
            notified(&mut service, true, false),
            "WATCHDOG=1 READY=1 STATUS=carries flows"
        );
        assert_eq!(notified(&mut service, true, false), "WATCHDOG=1");
        // A process that has crashed is replaced.
        assert_eq!(notified(&mut service, false, false), "WATCHDOG=1");
        assert_eq!(
            notified(&mut service, true, true),
            "WATCHDOG=1 STATUS=drains: new flows pass by EXTEND_TIMEOUT_USEC=30000000"
        );
        assert_eq!(notified(&mut service, true, true), waits);
    }
}
