//! Which flows there were, by what was published of them and by the sockets that live on.

use std::{
    collections::HashMap,
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
};

use pep_core::relay::{Direction, Side};

use super::{Survivor, counters::counters, inheritance::is_accepted};
use crate::arena::{Arena, SlotState};

/// Which flows there were.
#[derive(Debug, Default)]
pub struct Recovery {
    /// Those of which something was published.
    pub survivors: Vec<Survivor>,
    /// Clients that were accepted so late that nothing was.
    pub accepted: Vec<OwnedFd>,
    /// Flows of which too little is known.
    pub lost: u64,
}

impl Recovery {
    /// Sorts out what is in the memory of flows, and the sockets by their cookies. Those that are nobody's are closed:
    /// connections of which nobody ever knew. `client_mark` is that of clients' legs.
    pub fn new(arena: &Arc<Arena>, mut legs: HashMap<u64, OwnedFd>, client_mark: u32) -> Self {
        let mut recovery = Self::default();
        for slot in arena.occupied() {
            recovery.add(arena, slot, &mut legs);
        }
        let accepted = legs.into_values();
        let accepted = accepted.filter(|leg| is_accepted(leg.as_fd(), client_mark));
        recovery.accepted = accepted.collect();
        recovery
    }

    fn add(&mut self, arena: &Arc<Arena>, slot: u32, legs: &mut HashMap<u64, OwnedFd>) {
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
        let told = Side::ALL.map(|side| {
            let leg = legs[side as usize].as_ref()?;
            let towards = Direction::from(side.other());
            let fin_published = record.halves[towards as usize].fin_out;
            let told = counters(leg.as_fd(), side == Side::Server, fin_published);
            told.inspect_err(|err| tracing::warn!(error = %err, "a leg cannot be asked"))
                .ok()
        });
        self.survivors.push(Survivor {
            slot,
            record,
            legs,
            counters: told,
        });
    }
}
