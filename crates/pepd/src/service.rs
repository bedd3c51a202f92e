//! What the service manager is told that has started us, by sd_notify(3): systemd, with `Type=notify`.

use sd_notify::NotifyState::{self, ExtendTimeoutUsec, Ready, Status, Watchdog};

/// While it waits for us to come up, or to end, it is to wait for so many microseconds more from each word on.
const PATIENCE: u32 = 30_000_000;

/// What it knows.
#[derive(Debug, Default)]
pub struct Service {
    is_ready: bool,
    ends: bool,
}

impl Service {
    /// We live, which is to be told every second or so; whether flows are carried, and whether they drain. How long that may take is
    /// for the configuration to say, and not for the service manager. Where nobody has asked for it this does nothing.
    pub fn notify(&mut self, is_up: bool, ends: bool) {
        if let Err(err) = sd_notify::notify(&self.state(is_up, ends)) {
            tracing::debug!(error = %err, "cannot tell the service manager");
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
    fn each_change_is_told_once_and_waiting_all_the_time() {
        let mut service = Service::default();
        let waits = "WATCHDOG=1 EXTEND_TIMEOUT_USEC=30000000";
        assert_eq!(notified(&mut service, false, false), waits);
        assert_eq!(
            notified(&mut service, true, false),
            "WATCHDOG=1 READY=1 STATUS=carries flows"
        );
        assert_eq!(notified(&mut service, true, false), "WATCHDOG=1");
        // One that has crashed is replaced.
        assert_eq!(notified(&mut service, false, false), "WATCHDOG=1");
        assert_eq!(
            notified(&mut service, true, true),
            "WATCHDOG=1 STATUS=drains: new flows pass by EXTEND_TIMEOUT_USEC=30000000"
        );
        assert_eq!(notified(&mut service, true, true), waits);
    }
}
