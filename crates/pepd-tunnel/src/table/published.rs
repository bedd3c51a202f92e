//! Record of a flow for a successor process, and recovery from it.
//!
//! A position is published before a report that acknowledges it can leave: pepd handles events of
//! the session between receiving datagrams and creating others. Sent bytes are dropped only once
//! the peer has acknowledged them in order.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    io,
    net::SocketAddr,
    ops::Range,
    sync::Arc,
    time::Duration,
};

use pep_core::{
    arena::{Counters, DirectionRecord, Identity},
    budget::{MemoryBudget, Share},
    chunks::{ChunkMap, Torn},
    relay::{Direction, Side},
};
use pepd_relay::{
    arena::SlotState,
    flow::{self, FlowMemory},
    survive::Survivor,
};

use super::{
    CustodyHandle, FlowBuffers, Sizes,
    binding::Binding,
    entry::{Keeping, WINDOW},
};
use crate::custody::Spot;

/// Reasons for which a flow cannot resume in this process.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecoverError {
    /// The record contradicts the kernel's counters of the leg.
    #[error("its leg has moved {moved} bytes, but its record allows {minimum} to {most}")]
    Leg { moved: u64, minimum: u64, most: u64 },
    /// The record of its bytes is invalid.
    #[error(transparent)]
    Torn(#[from] Torn),
}

/// Chunks of a leg's bytes that a predecessor has left on disk, by position.
pub(super) type OnDisk = BTreeMap<u64, Spot>;

/// A recovered flow and the state of its leg.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) entry: FlowBuffers,
    /// The leg has received all bytes and the FIN.
    pub(crate) shut: bool,
    /// Bytes that had moved before their record was written.
    pub(crate) repaired: u64,
}

impl FlowBuffers {
    /// Publishes the flow's identity and its leg's cookie, if it has a leg. To be called before the
    /// peer hears of the flow, or that pepd has heard of it.
    pub(crate) fn publish(&mut self, identity: &Identity, leg: Option<io::Result<u64>>) {
        self.binding.token = identity.token;
        self.flags = identity.flags;
        let slot = &self.memory.slot;
        slot.publish_identity(identity);
        for side in Side::ALL {
            slot.publish_cookie(side, 0);
        }
        for direction in Direction::ALL {
            self.publish_direction(direction);
        }
        if let Some(leg) = leg {
            self.publish_leg(leg);
        }
        self.memory.slot.publish_state(SlotState::Accepted);
    }

    /// Returns the published client, if any.
    pub(super) fn client(&self) -> Option<SocketAddr> {
        let record = self.memory.slot.record()?;
        Some(record.identity.client)
    }

    /// Publishes the leg's cookie. To be called before it connects.
    pub(crate) fn publish_leg(&self, cookie: io::Result<u64>) {
        let side = match self.outward {
            Direction::Up => Side::Client,
            Direction::Down => Side::Server,
        };
        flow::publish_cookie(&self.memory.slot, side, cookie);
    }

    /// Publishes that the leg is connected.
    pub(crate) fn publish_connected(&self) {
        self.memory.slot.publish_state(SlotState::Relaying);
    }

    /// Publishes that the peer may hear of the flow from now on.
    pub(crate) fn publish_opened(&mut self) {
        self.flags.opened = true;
        self.memory.slot.publish_flags(self.flags);
    }

    /// Publishes that the client is about to get an early FIN.
    pub(crate) fn publish_answered(&mut self) {
        self.flags.answered = true;
        self.memory.slot.publish_flags(self.flags);
    }

    /// Returns whether an early FIN was published.
    pub(crate) fn is_answered(&self) -> bool {
        self.flags.answered
    }

    /// Publishes that the leg is about to be closed.
    pub(super) fn publish_closed(&self) {
        self.memory.slot.publish_state(SlotState::Closed);
    }

    /// Records the FIN to the leg.
    pub(crate) fn on_shut(&mut self) {
        self.shut = true;
        self.publish_direction(self.outward.other());
    }

    /// Records that the peer's last byte is readable.
    pub(super) fn on_finished(&mut self) {
        self.finished = true;
        self.publish_direction(self.outward.other());
        self.wake();
    }

    /// Publishes the positions of a direction.
    pub(super) fn publish_direction(&self, direction: Direction) {
        let outward = direction == self.outward;
        let map = if outward {
            &self.outgoing
        } else {
            &self.incoming
        };
        let state = DirectionRecord {
            head: map.head(),
            tail: map.tail(),
            base: 0,
            size: 0,
            fin_in: if outward {
                self.source_finished
            } else {
                self.finished
            },
            fin_out: !outward && self.shut,
        };
        self.memory.slot.publish_direction(direction, &state);
    }

    /// Publishes the places of a direction's bytes as far as they have changed.
    pub(super) fn publish_chunks(&mut self, direction: Direction) {
        let map = if direction == self.outward {
            &mut self.outgoing
        } else {
            &mut self.incoming
        };
        for change in map.changes() {
            let slot = &mut self.memory.slot;
            slot.publish_chunk(direction, change.chunk as usize, change.word);
        }
    }

    /// Recovers a flow of a predecessor, without its legs. Takes the chunks of `on_disk` that are
    /// not in memory.
    pub(super) fn recover<L>(
        survivor: Survivor<L>,
        sizes: Sizes,
        (initial, budget): (u64, &Arc<MemoryBudget>),
        keeper: CustodyHandle,
        on_disk: &mut OnDisk,
    ) -> Result<Recovered, RecoverError> {
        let identity = survivor.record.identity;
        let (outward, side) = match identity.kind {
            pep_core::arena::Kind::Far => (Direction::Down, Side::Server),
            _ => (Direction::Up, Side::Client),
        };
        let directions = survivor.record.directions;
        let (sent, received) = (
            directions[outward as usize],
            directions[outward.other() as usize],
        );
        let leg = survivor.counters[side as usize];
        let extent = survivor.slot.extent_bytes();
        let tail = read(&sent, leg.as_ref(), extent)?;
        // Bytes dropped after an early FIN were never sent to the leg.
        let leg = leg.filter(|_| !identity.flags.answered);
        let (head, shut) = given(&received, leg.as_ref())?;
        let slot = survivor.slot;
        let map = |direction, starts: &BTreeSet<u64>, held| {
            let words = (0..slot.chunks()).map(|chunk| slot.chunk(direction, chunk));
            ChunkMap::recover(extent, words, starts, held)
        };
        let starts = on_disk.keys().copied().collect();
        let out = map(outward, &starts, (sent.head, tail))?.with_window(WINDOW);
        let inn = map(outward.other(), &BTreeSet::new(), (head, received.tail))?;
        let mut binding = Binding::new();
        binding.token = identity.token;
        binding.known = sent.head > 0 || received.tail > 0;
        let goes_on = outward == Direction::Down || identity.flags.opened;
        binding.suspended = goes_on.then_some(Duration::ZERO);
        let charged = Direction::ALL.map(|direction| {
            let map = if direction == outward { &out } else { &inn };
            map.reserved().max(initial)
        });
        let mut share = Share::none(budget);
        share.grow(charged.iter().sum());
        let mut entry = Self {
            finished: received.fin_in,
            source_finished: sent.fin_in,
            closed: false,
            shut,
            reset: None,
            binding,
            host: None,
            waker: None,
            memory: FlowMemory { slot, share },
            flags: identity.flags,
            outward,
            sent: Cell::new(out.head()),
            outgoing: out,
            incoming: inn,
            unsent_max: sizes.unsent,
            waits: Cell::new(false),
            initial,
            charged,
            extra: 0,
            keeping: Keeping::new(keeper),
        };
        entry.begin_keeping(on_disk);
        for direction in Direction::ALL {
            entry.publish_direction(direction);
            entry.publish_chunks(direction);
            entry.give_back_free(direction, extent);
        }
        let repaired = (tail - sent.tail) + (head - received.head);
        Ok(Recovered {
            entry,
            shut,
            repaired,
        })
    }

    /// Gives back pages without needed bytes.
    fn give_back_free(&mut self, direction: Direction, extent: u64) {
        let map = if direction == self.outward {
            &self.outgoing
        } else {
            &self.incoming
        };
        let mut start = 0;
        for Range { start: used, end } in map.occupied() {
            self.memory.slot.give_back(direction, start..used);
            start = end;
        }
        self.memory.slot.give_back(direction, start..extent);
    }
}

/// Returns how many bytes were read from the leg, by the kernel's counters.
fn read(sent: &DirectionRecord, leg: Option<&Counters>, extent: u64) -> Result<u64, RecoverError> {
    let Some(leg) = leg else {
        return Ok(sent.tail);
    };
    // Bytes on disk take no room in the extent.
    let (minimum, most) = (sent.tail, sent.tail.saturating_add(extent));
    let moved = leg.read;
    if moved < minimum || moved > most {
        return Err(RecoverError::Leg {
            moved,
            minimum,
            most,
        });
    }
    Ok(moved)
}

/// Returns how many bytes were sent to the leg, by the kernel's counters, and whether a FIN was.
fn given(received: &DirectionRecord, leg: Option<&Counters>) -> Result<(u64, bool), RecoverError> {
    let (minimum, most) = (received.head, received.tail);
    let Some(leg) = leg else {
        return Ok((minimum, received.fin_out));
    };
    let moved = leg.written;
    if leg.closed && !leg.fin_sent {
        // The socket's state does not show a FIN, which counts as a byte.
        if received.fin_in && moved == most + 1 {
            return Ok((most, true));
        }
        // The leg takes no more bytes, so that the exact number does not matter.
        let plausible = (minimum..=most).contains(&moved);
        return Ok((if plausible { moved } else { minimum }, false));
    }
    if moved < minimum || moved > most {
        return Err(RecoverError::Leg {
            moved,
            minimum,
            most,
        });
    }
    Ok((moved, leg.fin_sent))
}
