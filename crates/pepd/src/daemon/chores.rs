//! What is looked after every second.

use std::error::Error;

use super::spare::Spare;
use crate::{
    flow::FlowContext,
    gate::Gate,
    intercept::{InterceptError, Interception, upkeep::Missing},
    log, sys,
};

/// How many slots are cleaned at one time: some milliseconds of work.
const SWEEP: usize = 1024;

/// Takes the pages of some slots that no flow uses.
pub(super) fn sweep(context: &FlowContext) {
    context.arena.sweep(SWEEP);
}

/// What the chores remember from one time to the next.
#[derive(Debug, Default)]
pub(super) struct Chores {
    /// Flows accepted up to the last time, when there was one.
    accepted: Option<u64>,
    /// Nothing but waiting was done since idle code was last unmapped.
    code_unmapped: bool,
    /// It was told that what somebody removed cannot be put back.
    told_of_missing: bool,
    /// Lines of the log known to be lost.
    lost_lines: u64,
}

impl Chores {
    /// Admission, memory and the log.
    pub(super) fn tidy(&mut self, context: &FlowContext) {
        context.admission.on_tick(context.next_flow_fits());
        sweep(context);
        self.tell_lost_lines();
        self.unmap_when_quiet(context.counters.snapshot().flows_accepted);
    }

    /// Should this line be lost as well, it is told again.
    fn tell_lost_lines(&mut self) {
        let lost = log::lost();
        if lost > self.lost_lines {
            self.lost_lines = lost;
            tracing::warn!(
                lost,
                "lines of the log were lost: nobody read those before them"
            );
        }
    }

    /// Code that only starting, or the beginning of flows, needs is given back a second after it was
    /// last needed.
    fn unmap_when_quiet(&mut self, accepted: u64) {
        let quiet = self.accepted.replace(accepted) == Some(accepted);
        if quiet
            && !self.code_unmapped
            && let Err(err) = sys::memory::unmap_idle_code()
        {
            tracing::debug!(error = %err, "idle code stays mapped");
        }
        self.code_unmapped = quiet;
    }

    /// Others flush rulesets and delete rules that they do not know: hosts would be without
    /// acceleration, or without connections.
    pub(super) async fn put_back(
        &mut self,
        interception: &Interception,
        gate: Gate,
        spare: &mut Spare,
    ) {
        match interception.missing().await {
            Ok(Some(missing)) => {
                spare.release();
                let result = interception.put_back(missing, gate).await;
                spare.fill();
                self.tell_of_missing(missing, result);
            }
            Ok(None) => self.told_of_missing = false,
            Err(err) => {
                let error = &err as &dyn Error;
                tracing::debug!(error, "cannot see whether all rules are in place");
            }
        }
    }

    fn tell_of_missing(&mut self, missing: Missing, put_back: Result<(), InterceptError>) {
        match put_back {
            Ok(()) => tracing::warn!(
                "somebody has removed {missing}: put back; until then hosts went without acceleration, \
                 or without connections"
            ),
            Err(err) if !self.told_of_missing => {
                self.told_of_missing = true;
                let error = &err as &dyn Error;
                tracing::error!(
                    error,
                    "somebody has removed {missing}: cannot put back, trying again every second"
                );
            }
            Err(_) => {}
        }
    }
}
