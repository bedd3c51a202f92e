//! Drain on request of an operator.

use std::{
    process,
    sync::Arc,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use parking_lot::{Mutex, MutexGuard};
use pepd_api::change::{DrainOrder, DrainReport, GRACE_MAX};
use pepd_relay::limits::Admission;

use super::reload::supervisor;

/// Drain of the open flows.
#[derive(Debug)]
pub struct Drain {
    admission: Arc<Admission>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    grace: Duration,
    /// Time of the request; a second signal to the first process would end it at once.
    begun: Option<Instant>,
}

impl Drain {
    /// Returns a drain of these flows, with this default time limit.
    pub fn new(admission: &Arc<Admission>, grace: Duration) -> Arc<Self> {
        Arc::new(Self {
            admission: Arc::clone(admission),
            state: Mutex::new(State { grace, begun: None }),
        })
    }

    /// Starts the drain, for any cause. Returns the time limit.
    pub fn start(&self) -> Duration {
        let mut state = self.state();
        state.begun = Some(Instant::now());
        state.grace
    }

    /// Sends SIGTERM to the first process, as a service manager would.
    ///
    /// # Errors
    /// When the time is out of range, or the signal cannot be sent.
    pub fn begin(&self, order: DrainOrder) -> Result<DrainReport, String> {
        let asked = order.timeout_s.map(grace).transpose()?;
        // Without a supervisor this process is the only one, or no process would start the next.
        let first = supervisor().unwrap_or_else(|_| process::id().cast_signed());
        let mut state = self.state();
        let already = state.begun.is_some();
        if !already {
            tracing::info!(pid = first, "drain requested by the operator");
            kill(Pid::from_raw(first), Signal::SIGTERM)
                .map_err(|err| format!("cannot send SIGTERM to process {first}: {err}"))?;
            state.grace = asked.unwrap_or(state.grace);
            state.begun = Some(Instant::now());
        }
        let gone = state.begun.map_or(Duration::ZERO, |begun| begun.elapsed());
        Ok(DrainReport {
            flows: self.admission.open_flows().into(),
            timeout_s: state.grace.saturating_sub(gone).as_secs_f64(),
            already,
            first,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

fn grace(seconds: f64) -> Result<Duration, String> {
    let grace = Duration::try_from_secs_f64(seconds).ok();
    let grace = grace.filter(|grace| *grace <= GRACE_MAX);
    grace.ok_or_else(|| "`timeout_s` must be from 0 to a week".to_owned())
}
