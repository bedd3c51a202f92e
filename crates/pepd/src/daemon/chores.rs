//! What is looked after every second.

use std::{collections::BTreeSet, error::Error};

use pepd_intercept::{InterceptError, Interception, upkeep::Trouble};
use pepd_relay::flow::FlowContext;
use pepd_sys::{gate::Gate, leg::Family, log};

use super::spare::Spare;

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
    /// Troubles that last, of which the log has a line.
    told: BTreeSet<Trouble>,
    /// Lines of the log known to be lost.
    lost_lines: u64,
}

/// What a look at all that was installed has come to.
#[derive(Debug, Default)]
pub(super) struct Looked {
    /// Something was mended: what is redirected may arrive again.
    pub mended: bool,
    /// Families of which SYNs that listeners answer at once cannot arrive.
    pub undelivered: BTreeSet<Family>,
}

impl Chores {
    /// Admission, memory and the log.
    pub(super) fn tidy(&mut self, context: &FlowContext) {
        context.admission.on_tick(context.next_flow_fits());
        sweep(context);
        self.log_lost_lines();
        self.unmap_when_quiet(context.counters.snapshot().flows_accepted);
    }

    /// Should this line be lost as well, it is told again.
    fn log_lost_lines(&mut self) {
        let lost = log::lost();
        if lost > self.lost_lines {
            self.lost_lines = lost;
            tracing::warn!(
                lost,
                "lines of the log were lost: nobody read those before them"
            );
        }
    }

    /// Code that only starting, or the beginning of flows, needs is given back a second after it
    /// was last needed.
    fn unmap_when_quiet(&mut self, accepted: u64) {
        let quiet = self.accepted.replace(accepted) == Some(accepted);
        if quiet
            && !self.code_unmapped
            && let Err(err) = pepd_sys::memory::unmap_idle_code()
        {
            tracing::debug!(error = %err, "idle code stays mapped");
        }
        self.code_unmapped = quiet;
    }

    /// Looks after what was installed, against other programs: hosts would be without acceleration,
    /// or without connections.
    pub(super) async fn look_after(
        &mut self,
        interception: &mut Interception,
        gate: Gate,
        spare: &mut Spare,
    ) -> Looked {
        let troubles = match interception.troubles().await {
            Ok(troubles) => BTreeSet::from_iter(troubles),
            Err(err) => {
                let error = &err as &dyn Error;
                tracing::debug!(error, "cannot see whether all rules are in place");
                return Looked::default();
            }
        };
        let is_on_again = self.told.contains(&Trouble::Off) && !troubles.contains(&Trouble::Off);
        self.told.retain(|trouble| troubles.contains(trouble));
        let mut troubles = troubles;
        if is_on_again {
            // All of IPv6 that is missing went with it.
            troubles.retain(|trouble| !matches!(trouble, Trouble::Undelivered(Family::V6, _)));
            troubles.insert(Trouble::Routing(Family::V6));
        }
        let mut looked = Looked::default();
        for trouble in troubles {
            spare.release();
            let result = interception.restore(&trouble, gate).await;
            spare.fill();
            looked.mended |= result.is_ok() && !trouble.is_for_operators();
            if let Trouble::Bridge(family, _) = &trouble {
                looked.undelivered.insert(*family);
            }
            self.log_dropped(&trouble, result, is_on_again);
        }
        looked
    }

    fn log_dropped(
        &mut self,
        trouble: &Trouble,
        result: Result<&'static str, InterceptError>,
        is_on_again: bool,
    ) {
        match result {
            Ok(_) if trouble.is_for_operators() => {
                if self.told.insert(trouble.clone()) {
                    tracing::warn!("{trouble}");
                }
            }
            Ok(_) if is_on_again && *trouble == Trouble::Routing(Family::V6) => {
                tracing::info!("IPv6 is switched on again: pepd takes IPv6 connections again");
            }
            Ok(done) => tracing::warn!(
                "{trouble}: {done}; until then hosts went without acceleration, or without connections"
            ),
            Err(err) => {
                let error = &err as &dyn Error;
                if self.told.insert(trouble.clone()) {
                    tracing::error!(
                        error,
                        "{trouble}: cannot mend it, trying again every second"
                    );
                }
            }
        }
    }
}
