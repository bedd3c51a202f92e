//! An orderly end, as an operator asks for it.

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

/// Lets the flows that are open end.
#[derive(Debug)]
pub struct Drain {
    admission: Arc<Admission>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    grace: Duration,
    /// Once it was asked for; to ask the first process twice would end it at once.
    begun: Option<Instant>,
}

impl Drain {
    /// Of these flows, which may take so long unless something else is asked for.
    pub fn new(admission: &Arc<Admission>, grace: Duration) -> Arc<Self> {
        Arc::new(Self {
            admission: Arc::clone(admission),
            state: Mutex::new(State { grace, begun: None }),
        })
    }

    /// It begins, whoever has asked for it. Returns how long flows may take.
    pub fn start(&self) -> Duration {
        let mut state = self.state();
        state.begun = Some(Instant::now());
        state.grace
    }

    /// Asks the first process to end, as SIGTERM does: what is told that by a service manager is the same.
    ///
    /// # Errors
    /// When the time is out of bounds, or the process cannot be asked.
    pub fn begin(&self, order: DrainOrder) -> Result<DrainReport, String> {
        let asked = order.timeout_s.map(grace).transpose()?;
        // Without it this process is the only one, or nobody would start the next.
        let first = supervisor().unwrap_or_else(|_| process::id().cast_signed());
        let mut state = self.state();
        let already = state.begun.is_some();
        if !already {
            tracing::info!(pid = first, "an operator asks for the end");
            kill(Pid::from_raw(first), Signal::SIGTERM)
                .map_err(|err| format!("cannot ask process {first} to end: {err}"))?;
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
    grace.ok_or_else(|| "`timeout_s` is to be from 0 to a week".to_owned())
}
