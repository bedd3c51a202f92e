//! Recovery of flows from their published records and from the surviving sockets.

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

/// Result of the recovery.
#[derive(Debug)]
pub struct Recovery<L = OwnedFd> {
    /// Flows with a published record.
    pub survivors: Vec<Survivor<L>>,
    /// Clients accepted so late that no record was published.
    pub accepted: Vec<L>,
    /// Flows with too little information.
    pub lost: u64,
}

impl Recovery {
    /// Matches the memory of flows with the sockets, by cookie. Sockets that match no flow are
    /// closed: such connections have moved no data. `client_mark` is the mark of clients' legs.
    pub fn new(arena: &Arc<Arena>, legs: HashMap<u64, OwnedFd>, client_mark: u32) -> Self {
        let reported = |leg: &OwnedFd, connected, fin_published| {
            counters(leg.as_fd(), connected, fin_published)
        };
        let mut recovery = Recovery::sort(arena, legs, reported);
        recovery
            .accepted
            .retain(|leg| is_accepted(leg.as_fd(), client_mark));
        recovery
    }
}

impl<L> Recovery<L> {
    /// Does the same with legs in any form, whose kernel [`counters`] `reported` returns. All legs
    /// that match no flow count as accepted.
    pub fn sort(
        arena: &Arc<Arena>,
        mut legs: HashMap<u64, L>,
        reported: impl Fn(&L, bool, bool) -> io::Result<Counters>,
    ) -> Self {
        let mut recovery = Self {
            survivors: Vec::new(),
            accepted: Vec::new(),
            lost: 0,
        };
        for slot in arena.occupied() {
            recovery.add(arena, slot, &mut legs, &reported);
        }
        // A flow that its client has reset is over. Its received data would look complete, since
        // reading the counters has taken the error.
        let is_over = |leg: &L| reported(leg, false, false).is_ok_and(|counters| counters.aborted);
        recovery.accepted = legs.into_values().filter(|leg| !is_over(leg)).collect();
        recovery
    }

    fn add(
        &mut self,
        arena: &Arc<Arena>,
        slot: u32,
        legs: &mut HashMap<u64, L>,
        reported: impl Fn(&L, bool, bool) -> io::Result<Counters>,
    ) {
        let slot = arena.attach(slot);
        let Some(record) = slot.record() else {
            tracing::warn!(
                slot = slot.index(),
                "flow lost in takeover: its record in memory is invalid; a bug: please report"
            );
            self.lost += 1;
            return;
        };
        let legs = record.cookies.map(|cookie| legs.remove(&cookie));
        if record.state == SlotState::Closed {
            // Its process was closing the legs, by RST or FIN as decided.
            return;
        }
        let counters = Side::ALL.map(|side| {
            let leg = legs[side as usize].as_ref()?;
            let towards = Direction::from(side.other());
            let fin_published = record.directions[towards as usize].fin_out;
            let reported = reported(leg, side == Side::Server, fin_published);
            reported
                .inspect_err(|err| {
                    tracing::warn!(
                        error = %err,
                        "cannot read the TCP counters of a flow in takeover: it may be lost"
                    );
                })
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
    fn a_reset_of_an_unrecorded_client_is_not_taken_for_its_end() {
        let geometry = Geometry {
            slots: 1,
            extent: 1 << 16,
            initial: 1 << 14,
        };
        let arena = Arena::new(geometry).unwrap();
        let reported = |leg: &&str, _, _| match *leg {
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
        let mut accepted = Recovery::sort(&arena, legs, reported).accepted;
        accepted.sort_unstable();
        assert_eq!(accepted, ["new", "unknown"]);
    }
}
