//! Which flows there were, by what was published of them and by the sockets that live on.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
};

use pep_core::{
    arena::Counters,
    relay::{Direction, Side},
};

use super::{Survivor, counters::counters, inheritance::is_accepted};
use crate::arena::{Arena, SlotState};

/// Which flows there were.
#[derive(Debug)]
pub struct Recovery<L = OwnedFd> {
    /// Those of which something was published.
    pub survivors: Vec<Survivor<L>>,
    /// Clients that were accepted so late that nothing was.
    pub accepted: Vec<L>,
    /// Flows of which too little is known.
    pub lost: u64,
}

impl Recovery {
    /// Sorts out what is in the memory of flows, and the sockets by their cookies. Those that are nobody's are closed:
    /// connections of which nobody ever knew. `client_mark` is that of clients' legs.
    pub fn new(arena: &Arc<Arena>, legs: HashMap<u64, OwnedFd>, client_mark: u32) -> Self {
        let told = |leg: &OwnedFd, connected, fin_published| {
            counters(leg.as_fd(), connected, fin_published)
        };
        let mut recovery = Recovery::sort(arena, legs, told);
        recovery
            .accepted
            .retain(|leg| is_accepted(leg.as_fd(), client_mark));
        recovery
    }
}

impl<L> Recovery<L> {
    /// The same of legs as others see them, of which [`counters`] tells in that way; all that are nobody's are taken for accepted.
    pub fn sort(
        arena: &Arc<Arena>,
        mut legs: HashMap<u64, L>,
        told: impl Fn(&L, bool, bool) -> io::Result<Counters>,
    ) -> Self {
        let mut recovery = Self {
            survivors: Vec::new(),
            accepted: Vec::new(),
            lost: 0,
        };
        for slot in arena.occupied() {
            recovery.add(arena, slot, &mut legs, &told);
        }
        // One that its client has reset is over. What it had sent would look like all there is, as the error has been taken with its counters.
        let is_over = |leg: &L| told(leg, false, false).is_ok_and(|counters| counters.aborted);
        recovery.accepted = legs.into_values().filter(|leg| !is_over(leg)).collect();
        recovery
    }

    fn add(
        &mut self,
        arena: &Arc<Arena>,
        slot: u32,
        legs: &mut HashMap<u64, L>,
        told: impl Fn(&L, bool, bool) -> io::Result<Counters>,
    ) {
        let slot = arena.attach(slot);
        let Some(record) = slot.record() else {
            tracing::warn!(
                slot = slot.index(),
                "what is written of a flow makes no sense"
            );
            self.lost += 1;
            return;
        };
        let legs = record.cookies.map(|cookie| legs.remove(&cookie));
        if record.state == SlotState::Closed {
            // Its process was closing them, by RST or by FIN as they were told.
            return;
        }
        let counters = Side::ALL.map(|side| {
            let leg = legs[side as usize].as_ref()?;
            let towards = Direction::from(side.other());
            let fin_published = record.halves[towards as usize].fin_out;
            let told = told(leg, side == Side::Server, fin_published);
            told.inspect_err(|err| tracing::warn!(error = %err, "a leg cannot be asked"))
                .ok()
        });
        self.survivors.push(Survivor {
            slot,
            record,
            legs,
            counters,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Geometry;

    #[test]
    fn a_client_that_has_reset_what_nobody_knows_of_is_not_taken_for_one_that_has_ended() {
        let geometry = Geometry {
            slots: 1,
            extent: 1 << 16,
            initial: 1 << 14,
        };
        let arena = Arena::new(geometry).unwrap();
        let told = |leg: &&str, _, _| match *leg {
            "reset" => Ok(Counters {
                closed: true,
                aborted: true,
                ..Counters::default()
            }),
            "unknown" => Err(io::ErrorKind::TimedOut.into()),
            _ => Ok(Counters::default()),
        };
        let legs = ["new", "reset", "unknown"];
        let legs = (1..).zip(legs).collect();
        let mut accepted = Recovery::sort(&arena, legs, told).accepted;
        accepted.sort_unstable();
        assert_eq!(accepted, ["new", "unknown"]);
    }
}
