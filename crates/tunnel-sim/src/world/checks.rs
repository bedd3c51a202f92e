//! Checks of an end's behaviour apart from its output: no spinning, no flooding, no excessive
//! memory.

use std::{cmp::Reverse, time::Duration};

use super::{Task, World};
use crate::{
    side::{End, Side},
    violation::Violation,
};

/// Maximum number of consecutive deadlines in the past without anything to do.
const SPINS_MAX: u32 = 8;
/// Bytes that may be sent at once ahead of a configured rate: the size of a segmentation offload.
const BURST: f64 = 64_000.0;
/// The longest batch, 10 ms, and the longest delay that an end may catch up, 5 ms.
const LATE: Duration = Duration::from_millis(15);

impl<S: Side> World<S> {
    /// Returns whether the plan is completed.
    pub(super) fn is_over(&self) -> bool {
        let opens = |task: &Task| matches!(task, Task::Open(_) | Task::Step(_));
        self.ledger.is_over() && !self.agenda.iter().any(|Reverse((_, _, task))| opens(task))
    }

    pub(super) fn stuck(&self) -> Violation {
        let flows = self.ledger.flows.iter();
        let open = flows.filter(|flow| !flow.is_over(0) || !flow.is_over(1));
        let mut open: Vec<_> = open.map(super::super::flow::Flow::describe).collect();
        for Reverse((_, _, task)) in &self.agenda {
            if let Task::Open(plan) = task {
                open.push(format!("stream {plan} of the plan could not be opened"));
            }
        }
        Violation::Stuck { open }
    }

    /// Checks a packet about to be sent.
    pub(super) fn check_packet(&mut self, end: End, length: usize) -> Result<(), (End, Violation)> {
        let session = &self.plan.sessions[end];
        let most = session.packet_max + session.overhead;
        if length > most {
            return Err((end, Violation::Oversized { length, most }));
        }
        let (seat, now) = (&mut self.seats[end], self.now);
        seat.sent += 1;
        let Some(rate) = session.rate.stated() else {
            return Ok(());
        };
        let per_second = rate as f64 / 8.0;
        let (ahead, since) = seat.ahead;
        let caught_up = per_second * (now - since).as_secs_f64();
        let ahead = (ahead - caught_up).max(0.0) + length as f64;
        seat.ahead = (ahead, now);
        let allowed = BURST + per_second * LATE.as_secs_f64();
        if ahead > allowed {
            let (bytes, allowed) = (ahead as u64, allowed as u64);
            return Err((end, Violation::Flood { bytes, allowed }));
        }
        Ok(())
    }

    /// Checks an end that has done all its work for now, and sets its wake-up time.
    pub(super) fn rest(&mut self, end: End, did: usize) -> Result<(), (End, Violation)> {
        let (now, late) = (self.now, self.rng.time(self.plan.lateness));
        let seat = &mut self.seats[end];
        if did == 0 && seat.wake.is_some_and(|wake| wake <= now) {
            seat.idle_wakes += 1;
        }
        let deadline = seat.say(S::deadline);
        seat.due = false;
        seat.wake = deadline.map(|deadline| deadline.max(now) + late);
        if seat.spins.1 != now {
            seat.spins = (0, now);
        }
        if let Some(deadline) = deadline.filter(|deadline| *deadline <= now) {
            seat.spins.0 += 1;
            if seat.spins.0 > SPINS_MAX {
                return Err((end, Violation::BusyLoop { deadline }));
            }
        }
        let busy = 4 * (seat.sent + seat.received) + (now.as_secs_f64() * 2500.0) as u64;
        if seat.idle_wakes > 1000 + busy {
            let wakes = seat.idle_wakes;
            return Err((end, Violation::IdleWakes { wakes }));
        }
        let (held, most) = (seat.held.max(0) as u64, self.plan.memory_max);
        // A recorded run keeps its events, too.
        if held > most && self.recording.is_none() {
            return Err((end, Violation::Memory { held, most }));
        }
        Ok(())
    }
}
